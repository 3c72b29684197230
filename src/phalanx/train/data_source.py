"""Construction of the data source from the options."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.sources.in_memory import InMemorySource
from phalanx.data.sources.pack_source import PackSource
from phalanx.data.sources.source import Source
from phalanx.parallel.run_group import RunGroup
from phalanx.run.packed import Packed, open_pack
from phalanx.train.config import TrainConfig
from phalanx.train.unshared_data import dataset_folder, describe_everywhere


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
    return open_pack(
        packed_of(config),
        described,
        group,
        seed=config.seed,
        epochs=config.epochs,
        timeout_s=config.timeout_s,
        copies=copies,
        notice=line,
    )


def packed_of(config: TrainConfig) -> Packed:
    """Return the pack of the options, as a program names it."""
    assert config.data is not None, "packed data"
    return Packed(
        config.data,
        readers=config.readers,
        reader_kind=config.reader_kind,
        prefetch=config.prefetch,
        cache_mb=config.cache_mb,
        stage=config.stage,
        stage_mb=config.stage_mb,
        keep_staged=config.keep_staged,
        shuffle_shards=config.shuffle_shards,
        augment=config.augment,
        damaged=config.damaged,
        train_samples=config.train_samples,
        validation_samples=config.validation_samples,
        dtype=config.dtype,
    )
