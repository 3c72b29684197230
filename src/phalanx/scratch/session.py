"""The main function of a rank: join the world, train, write records, leave."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from pathlib import Path

import numpy as np

from phalanx.launch.detect import Launched
from phalanx.launch.temporary import job_folder
from phalanx.records.environment import process_age_s
from phalanx.records.events import FinishedEvent, StartedEvent
from phalanx.records.files import EventWriter, rank_file, read_run
from phalanx.records.processor_time import peak_memory_bytes
from phalanx.records.totals import RankTotals, summarize
from phalanx.scratch.build import build_scheme
from phalanx.scratch.config import ScratchConfig
from phalanx.scratch.expected import expected_of, num_parameters
from phalanx.scratch.images import Samples, map_images, unlink_images
from phalanx.scratch.loop import LoopContext, run_epoch
from phalanx.scratch.world import OneProcess, WorldProtocol


def train(folder: Path, images: Path, launched: Launched | None) -> None:
    """Train by the options in the folder's record, on the samples in `images`."""
    began_at = time.perf_counter() - process_age_s()
    config = ScratchConfig.from_record(read_run(folder).config)
    world = _join(config, launched)
    writer = EventWriter(rank_file(folder, world.rank))
    try:
        context = _prepare(config, world, images, writer, began_at)
        _epochs(config, context)
        _finish(context)
    finally:
        writer.close()
    world.barrier("run's end")
    world.close()


def _join(config: ScratchConfig, launched: Launched | None) -> WorldProtocol:
    if config.scheme == "alone":
        return OneProcess()
    from phalanx.comm.join_world import join_world  # not needed by one process

    return join_world(
        timeout_s=config.timeout_s,
        num_started=config.ranks,
        launcher=launched.launcher if launched else "the launcher",
    )


def _map_samples(config: ScratchConfig, images: Path) -> tuple[Samples, Samples]:
    """Map the samples, which lie in `images` on the launching machine; other nodes read them."""
    if images.is_dir():
        return map_images(images, config.dtype)
    from phalanx.scratch.job import write_samples  # one machine needs nothing of it

    with job_folder() as own:
        write_samples(config, own)
        return map_images(own, config.dtype)


def _prepare(
    config: ScratchConfig, world: WorldProtocol, images: Path, writer: EventWriter, began_at: float
) -> LoopContext:
    train, validation = _map_samples(config, images)
    scheme = build_scheme(config, world.group)
    context = LoopContext(
        scheme=scheme,
        world=world,
        train=train,
        validation=validation,
        batch_size=config.batch_size,
        seed=config.seed,
        writer=writer,
        began_at=began_at,
    )
    world.barrier("samples mapped")
    if world.rank == 0 and images.is_dir():
        unlink_images(images)
    if world.group is not None:
        world.group.traffic = context.traffic
    now = time.perf_counter()
    writer.add(
        StartedEvent(
            at_s=now - began_at,
            rank=world.rank,
            hostname=socket.gethostname(),
            process_id=os.getpid(),
            local_rank=world.local_rank,
            threads=config.threads,
            startup_s=now - began_at,
            parameters=num_parameters(config.sizes),
            train_samples=len(train),
            validation_samples=len(validation),
            role=scheme.role,
            expected=expected_of(config, world.rank, batch_size=min(config.batch_size, len(train))),
        )
    )
    writer.flush()
    return context


def _epochs(config: ScratchConfig, context: LoopContext) -> None:
    """Rank 0 sums up after each."""
    trained_s = 0.0
    for epoch in range(config.epochs):
        totals = run_epoch(context, epoch)
        rows = context.world.gather(np.array(totals.values()))
        if rows is not None:
            summary = summarize(
                [RankTotals.from_values(row) for row in rows.tolist()],
                epoch=epoch,
                trained_s=trained_s,
                at_s=time.perf_counter() - context.began_at,
            )
            trained_s = summary.trained_s
            context.writer.add(summary)
        context.writer.flush()


def _finish(context: LoopContext) -> None:
    """The last line: that this rank came to the end, and with which parameters."""
    parameters = context.scheme.full_parameters()
    context.writer.add(
        FinishedEvent(
            at_s=time.perf_counter() - context.began_at,
            parameters_sha256=hashlib.sha256(parameters.data).hexdigest(),
            peak_memory_bytes=peak_memory_bytes(),
        )
    )
