"""The main function of a rank: join the world, train, write records, leave."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import time
from pathlib import Path

import numpy as np

from phalanx.launch.detect import Launched
from phalanx.records.environment import process_age_s
from phalanx.records.files import EventWriter, rank_file, read_run
from phalanx.records.schema import FinishedEvent, StartedEvent
from phalanx.records.totals import RankTotals, summarize
from phalanx.scratch.build import build_scheme
from phalanx.scratch.config import ScratchConfig
from phalanx.scratch.expected import expected_of, num_parameters
from phalanx.scratch.images import forget_images, map_images
from phalanx.scratch.loop import Work, run_epoch
from phalanx.scratch.ranks import OneProcess, Ranks


def train(folder: Path, images: Path, launched: Launched | None) -> None:
    """Train by the options in the folder's record, on the samples in `images`."""
    began_at = time.perf_counter() - process_age_s()
    config = ScratchConfig.from_record(read_run(folder).config)
    ranks = _join(config, launched)
    writer = EventWriter(rank_file(folder, ranks.rank))
    try:
        work = _prepare(config, ranks, images, writer, began_at)
        _epochs(config, work)
        _finish(work)
    finally:
        writer.close()
    ranks.barrier("run's end")
    ranks.close()


def _join(config: ScratchConfig, launched: Launched | None) -> Ranks:
    if config.scheme == "alone":
        return OneProcess()
    from phalanx.comm.join_world import join_world  # not needed by one process

    return join_world(
        timeout_s=config.timeout_s,
        num_started=config.ranks,
        launcher=launched.launcher if launched else "the launcher",
    )


def _prepare(
    config: ScratchConfig, ranks: Ranks, images: Path, writer: EventWriter, began_at: float
) -> Work:
    train, validation = map_images(images, config.dtype)
    scheme = build_scheme(config, ranks.group)
    work = Work(
        scheme=scheme,
        ranks=ranks,
        train=train,
        validation=validation,
        batch_size=config.batch_size,
        seed=config.seed,
        writer=writer,
        began_at=began_at,
    )
    ranks.barrier("samples mapped")
    if ranks.rank == 0:
        forget_images(images)
    if ranks.group is not None:
        ranks.group.traffic = work.traffic
    now = time.perf_counter()
    writer.add(
        StartedEvent(
            at_s=now - began_at,
            rank=ranks.rank,
            hostname=socket.gethostname(),
            process_id=os.getpid(),
            local_rank=ranks.local_rank,
            threads=config.threads,
            startup_s=now - began_at,
            parameters=num_parameters(config.sizes),
            train_samples=len(train),
            validation_samples=len(validation),
            role=scheme.role,
            expected=expected_of(config, ranks.rank, batch_size=min(config.batch_size, len(train))),
        )
    )
    writer.flush()
    return work


def _epochs(config: ScratchConfig, work: Work) -> None:
    """Rank 0 sums up after each."""
    trained_s = 0.0
    for epoch in range(config.epochs):
        totals = run_epoch(work, epoch)
        rows = work.ranks.gather(np.array(totals.values()))
        if rows is not None:
            summary = summarize(
                [RankTotals.from_values(row) for row in rows.tolist()],
                epoch=epoch,
                trained_s=trained_s,
                at_s=time.perf_counter() - work.began_at,
            )
            trained_s = summary.trained_s
            work.writer.add(summary)
        work.writer.flush()


def _finish(work: Work) -> None:
    """The last line: that this rank came to the end, and with which parameters."""
    parameters = work.scheme.whole()
    work.writer.add(
        FinishedEvent(
            at_s=time.perf_counter() - work.began_at,
            parameters_sha256=hashlib.sha256(parameters.data).hexdigest(),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
    )
