"""Agreement of the ranks before a training starts: on its options, and the data of each node.

Under the user's own launcher rank 0 completes the options, by the data that its node has, and the
others follow: nodes that lack files get copies, and none decides by other files than rank 0.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from phalanx.comm.shared_folder import named_host
from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.sources.packed import Packed
from phalanx.data.staging.node_copies import dataset_folder, packed_everywhere
from phalanx.jobs.detect import Launched
from phalanx.models.options import DataShape
from phalanx.parallel.make import JobRanks
from phalanx.train.config import TrainConfig
from phalanx.train.run import complete, with_ranks


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Data of a training, as `phalanx.start` and `run.evaluate` take them."""

    train: object
    validation: object
    shape: DataShape
    num_train: int
    num_validation: int
    folder: Path | None = None
    """The pack as this node has it, where it is one."""


class Agreement:
    """The ranks before the run, on several nodes with a group of their own."""

    def __init__(self, config: TrainConfig, launched: Launched | None, *, is_begun: bool) -> None:
        """Meet, where the ranks may be on several nodes. Collective.

        is_begun: the options are complete, and whoever has started the ranks keeps the run.
        """
        self._config, self._launched, self._is_begun = config, launched, is_begun
        ranks = JobRanks(launched=launched, timeout_s=config.timeout_s)
        spans = launched is not None and launched.may_span_nodes
        self._group = ranks.before_run(is_gloo=config.strategy == "gloo") if spans else None
        self._copies, self._has_copies = ExitStack(), False
        self.lines: list[str] = []
        """Lines for the user before those of the run."""

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0."""
        return self._launched is None or self._launched.rank == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, SystemExit):
            self._copies.close()
            self._part()

    def _part(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()

    def complete(self) -> TrainConfig:
        """Return the options, complete.

        Raises: UserError as `phalanx.train.run.complete`.
        """
        if self._is_begun:
            return self._config
        group, config = self._group, self._config
        with named_host(self._launched):
            if group is not None and not self.is_first:
                config = with_ranks(config, self._launched)
            else:
                config, choice = complete(config, self._launched)
                self.lines += [choice.reason]
        if group is None:
            return config
        text = group.share(json.dumps(config.as_record()) if self.is_first else "")
        return replace(TrainConfig.from_record(json.loads(text)), threads=config.threads)

    def open_data(self, config: TrainConfig) -> TrainingData:
        """Return the data. Nodes that lack rank 0's files get copies.

        config: complete.
        Raises: UserError when the data is missing or damaged, or has fewer samples than asked for.
        """
        with named_host(self._launched):
            data = self._open_dataset(config) if config.data is None else self._open_pack(config)
        if not self._has_copies:
            self._part()
        return data

    def _open_dataset(self, config: TrainConfig) -> TrainingData:
        with dataset_folder(config.dataset, config.data_root, self._group) as data_root:
            dataset = load_dataset(
                config.dataset,
                data_root,
                dtype=getattr(torch, config.dtype),
                train_samples=config.train_samples,
                validation_samples=config.validation_samples,
            )
        return TrainingData(
            train=(dataset.train_inputs, dataset.train_targets),
            validation=(dataset.validation_inputs, dataset.validation_targets),
            shape=dataset.shape,
            num_train=len(dataset.train_inputs),
            num_validation=len(dataset.validation_inputs),
        )

    def _open_pack(self, config: TrainConfig) -> TrainingData:
        packed, described, line = packed_everywhere(packed_of(config), self._group, self._copies)
        self._has_copies = bool(line)
        if line and self.is_first:
            print(line, flush=True)
        return TrainingData(
            train=packed,
            validation=packed,
            folder=described.folder,
            shape=described.shape,
            num_train=min(config.train_samples or described.num_train, described.num_train),
            num_validation=min(
                config.validation_samples or described.num_validation, described.num_validation
            ),
        )


def packed_of(config: TrainConfig) -> Packed:
    """Return the pack of the options, as a program names it."""
    assert config.data is not None, "packed data"
    names = [each.name for each in fields(Packed) if each.name != "folder"]
    return Packed(config.data, **{name: getattr(config, name) for name in names})
