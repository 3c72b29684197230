"""Construction of the data source from the options."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.packed.pack import Pack
from phalanx.data.reading.pack_reader import INPUTS, Preparation
from phalanx.data.sources.in_memory import InMemorySource
from phalanx.data.sources.pack_description import TRAIN, VALIDATION, PackDescription
from phalanx.data.sources.pack_source import PackSource, ReaderOptions
from phalanx.data.sources.source import Source
from phalanx.data.staging.stage_folder import StageFolder, stage_path
from phalanx.data.staging.stage_plan import ReadSchedule
from phalanx.data.staging.stager import Stager
from phalanx.parallel.run_group import RunGroup
from phalanx.train.config import TrainConfig
from phalanx.train.unshared_data import dataset_folder, describe_everywhere

MEASURED_SAMPLES = 1000
"""Of which mean and deviation are taken where the pack does not name them."""


def open_source(config: TrainConfig, group: RunGroup, dtype: torch.dtype) -> Source:
    """Return data in memory, or packed. Collective. Nodes that lack rank 0's files get copies.

    Raises: UserError when the data is missing or damaged, or has fewer samples than asked for.
    """
    if config.data is not None:
        return _open_pack(config, group)
    with dataset_folder(config, group) as data_root:
        dataset = load_dataset(
            config.dataset,
            data_root,
            dtype=dtype,
            train_samples=config.train_samples,
            validation_samples=config.validation_samples,
        )
    return InMemorySource(dataset)


def _open_pack(config: TrainConfig, group: RunGroup) -> PackSource:
    copies = ExitStack()
    described, line = describe_everywhere(config, group, copies)
    stages = config.stage is not None and not line  # where nodes have copies they have everything
    staged = _stage_path(config, described, group) if stages else None
    source = PackSource(
        described,
        preparation(config, described, group),
        _ahead(config),
        train_samples=config.train_samples,
        validation_samples=config.validation_samples,
        staged=staged,
        spans=group.spans,
    )
    source.copies, source.opening_notice = copies, line
    if staged is not None and group.is_node_leader:
        source.stager = _stager(config, described, group, source, staged)
    return source


def _ahead(config: TrainConfig) -> ReaderOptions:
    return ReaderOptions(
        readers=config.readers,
        kind=config.reader_kind,
        depth=config.prefetch,
        cache_bytes=int(config.cache_mb * 1e6),
        damaged=config.damaged,
        shuffle_shards=config.shuffle_shards,
        timeout_s=config.timeout_s,
    )


def _stage_path(config: TrainConfig, described: PackDescription, group: RunGroup) -> Path:
    """Return the path of this node's staged shards. Collective."""
    assert config.stage is not None, "asked for"
    run = group.share(f"{socket.gethostname()}-{os.getpid()}")
    return stage_path(config.stage, described.fingerprint, run, group.node)


def _stager(
    config: TrainConfig,
    described: PackDescription,
    group: RunGroup,
    source: PackSource,
    path: Path,
) -> Stager:
    schedule = ReadSchedule(
        first_samples=source.first_samples(TRAIN),
        num_validation_shards=len(source.first_samples(VALIDATION)) - 1,
        window=config.shuffle_shards,
        seed=config.seed,
        epochs=config.epochs,
    )
    return Stager(
        described.folder,
        StageFolder(path, described.fingerprint, keep=config.keep_staged),
        source.stage_units(),
        lambda: schedule.ahead(*source.position),
        max_bytes=None if config.stage_mb is None else config.stage_mb * 1e6,
        group=group.node_leaders(),
    )


def preparation(config: TrainConfig, described: PackDescription, group: RunGroup) -> Preparation:
    """Return the preprocessing, the same on every rank: rank 0 measures what the pack does not
    name. Collective."""
    pack = Pack(described.folder / TRAIN, damaged=config.damaged)
    field, means, deviations = pack.fields[INPUTS], None, None
    if not described.shape.is_text:
        means, deviations = field.mean, field.deviation
        is_image = len(described.shape.inputs) == 3
        if means is None and np.dtype(field.dtype) == np.uint8 and is_image:
            measured = measure(pack, described) if group.rank == 0 else ""
            means, deviations = (
                [float(word) for word in part.split()] for part in group.share(measured).split("/")
            )
    pack.close()
    return Preparation(
        shape=described.shape.inputs,
        dtype="int64" if described.shape.is_text else config.dtype,
        means=means,
        deviations=deviations,
        packed_dims=len(field.shape or ()),
        num_classes=described.shape.num_classes,
        augment_seed=config.seed if config.augment else None,
    )


def measure(pack: Pack, described: PackDescription) -> str:
    """Return mean and deviation of each channel, of samples spread over the pack, as words that
    parse to these very numbers on every rank."""
    number = min(MEASURED_SAMPLES, pack.num_samples)
    samples = np.arange(number) * pack.num_samples // number
    values = pack.read(INPUTS, samples)
    lost = pack.damaged_of(samples)
    pixels = values[~lost].reshape(-1, *described.shape.inputs)
    means, deviations = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    return "/".join(" ".join(map(repr, part.tolist())) for part in (means, deviations))
