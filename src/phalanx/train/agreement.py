"""Agreement of the ranks before a training starts: on its options, and the data of each node.

Under the user's own launcher rank 0 completes the options, by the data and the checkpoints that its
node has, and the others follow: nodes that lack files get copies, and none decides by other files
than rank 0. A published data set is read into memory, from a copy in the temporary folder that is
removed at once. A pack is read during the whole run: its copy lies in the folder of `--stage`.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from phalanx.comm.file_copies import local_copies
from phalanx.comm.shared_folder import RankOnHost, by_host, gather_text, named_host
from phalanx.data.datasets.catalog import FILE_SETS
from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.packed.index import INDEX
from phalanx.data.packed.index_file import read_index
from phalanx.data.published.file_sets import find_file, find_folder, search_roots
from phalanx.data.sources.packed import TRAIN, VALIDATION, PackDescription, Packed, describe
from phalanx.data.staging.stage_folder import StageFolder, stage_path
from phalanx.errors import UserError
from phalanx.jobs.detect import Launched
from phalanx.models.options import DataShape
from phalanx.parallel.gloo import GlooGroup
from phalanx.parallel.make import JobRanks
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.world_group import WorldGroup
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
        """is_begun: the options are complete, and whoever has started the ranks keeps the run."""
        self._config, self._launched, self._is_begun = config, launched, is_begun
        self._group: RunGroup | None = None
        self._copies, self._has_copies = ExitStack(), False
        self.lines: list[str] = []
        """Lines for the user before those of the run."""

    @property
    def is_first(self) -> bool:
        """Return whether this is rank 0."""
        return self._launched is None or self._launched.rank == 0

    def __enter__(self) -> Self:
        if self._launched is not None and self._launched.may_span_nodes:
            ranks = JobRanks(launched=self._launched, timeout_s=self._config.timeout_s)
            self._group = _meet(ranks, is_gloo=self._config.strategy == "gloo")
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
        with dataset_folder(config, self._group) as data_root:
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
        described, line = describe_everywhere(config, self._group, self._copies)
        packed = packed_of(config)
        if line:  # nodes with copies have all of it
            self._has_copies = True
            packed = replace(
                packed, folder=described.folder, stage=None, stage_mb=None, keep_staged=False
            )
            if self.is_first:
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


def _meet(ranks: JobRanks, *, is_gloo: bool) -> RunGroup:
    if not is_gloo:
        return WorldGroup(ranks.join())
    store, rank, size, local_rank = ranks.meet()
    return GlooGroup(
        rank=rank,
        size=size,
        local_rank=local_rank,
        store=dist.PrefixStore("phalanx agreement", store),
        timeout_s=ranks.timeout_s,
    )


def packed_of(config: TrainConfig) -> Packed:
    """Return the pack of the options, as a program names it."""
    assert config.data is not None, "packed data"
    names = [each.name for each in fields(Packed) if each.name != "folder"]
    return Packed(config.data, **{name: getattr(config, name) for name in names})


@contextmanager
def dataset_folder(config: TrainConfig, group: RunGroup | None) -> Iterator[Path | None]:
    """Give each rank the `--data-root` under which it finds the data set of rank 0. Collective, at
    the beginning of the block and at its end.

    config: complete, with the name of the data set.
    Raises: UserError, on every rank, when a file cannot be sent or written.
    """
    file_set = next((files for name, files in FILE_SETS.items() if name == config.dataset), None)
    if file_set is None or group is None:  # embedded data, or one node
        yield config.data_root
        return
    root = config.data_root
    # A root that this node lacks is an error on rank 0 alone.
    roots = [] if group.rank > 0 and root is not None and not root.is_dir() else search_roots(root)
    folder, files = find_folder(roots, file_set), {}
    if folder is not None and group.rank == 0:
        found = [find_file(folder, file) for file in file_set.files]
        files = {path.name: path for path in found if path is not None}
    is_wanted = group.rank > 0 and folder is None
    with local_copies(group, files, is_wanted=is_wanted) as copied:
        yield copied or config.data_root


def describe_everywhere(
    config: TrainConfig, group: RunGroup | None, copies: ExitStack
) -> tuple[PackDescription, str]:
    """Return the pack as this rank reads it, and a line for the user where nodes lacked its folder
    and have got a copy. Collective.

    copies: removes this node's copy when it is closed, which is collective, too.
    Raises: UserError when this rank cannot read it; on every rank, when nodes lack the folder and
            `--stage` names none for copies, or when they have other data in it.
    """
    assert config.data is not None, "packed data"
    if group is None:  # one node
        return describe(config.data), ""
    folder, lacking = config.data, _ranks_lacking(config.data, group)
    if not lacking:
        return describe(folder), ""
    is_wanted = group.rank in {rank for rank, _ in lacking}
    described = None if is_wanted else describe(folder)
    own_bytes = 0 if described is None else sum(_sizes(folder))
    needed = int(group.share(str(own_bytes)))
    _check_stage(config, lacking, group.share(socket.gethostname()), needed)
    fingerprint = group.share("" if described is None else described.fingerprint)
    run = group.share(f"{socket.gethostname()}-{os.getpid()}")
    files = _files(folder) if group.rank == 0 else {}
    copied = copies.enter_context(
        local_copies(
            group,
            files,
            is_wanted=is_wanted,
            make_folder=partial(_staged_copy, config, fingerprint, run, group.node),
        )
    )
    name = group.share("" if described is None else described.name)
    line = (
        f"--data {folder}: {by_host(lacking)} had no such folder, and has got a copy in --stage "
        f"{config.stage}, {needed / 1e6:,.1f} MB; the other nodes read it where it is"
    )
    return replace(describe(copied or folder), name=name), line


def _ranks_lacking(folder: Path, group: RunGroup) -> list[RankOnHost]:
    """Return the ranks that do not see a pack of rank 0's; none where rank 0 has no pack there,
    which is rank 0's to tell. Collective.

    Raises: UserError, on every rank, where one sees another pack.
    """
    digest, host = _digest(folder), socket.gethostname()
    first = group.share(digest)
    if not first:
        return []
    seen = "same" if digest == first else "other" if digest else "none"
    by_rank = [text.split(" ", 1) for text in gather_text(group, f"{seen} {host}")]
    ranks = {
        kind: [RankOnHost(n, name) for n, (seen, name) in enumerate(by_rank) if seen == kind]
        for kind in ("none", "other")
    }
    if ranks["other"]:
        raise UserError(
            f"--data {folder}: {by_host(ranks['other'])} has other data in it than "
            f"{by_rank[0][1]} (rank 0): copy one of them to all nodes, or name a folder they share"
        )
    return ranks["none"]


def _digest(folder: Path) -> str:
    """Return a hash of the indices of a pack, and so of all its bytes; empty: it lacks one."""
    digest = hashlib.sha256()
    for split in (TRAIN, VALIDATION):
        try:
            digest.update((folder / split / INDEX).read_bytes())
        except OSError:
            return ""
    return digest.hexdigest()


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a pack by their paths in it: all that training reads."""
    names = [
        f"{split}/{name}"
        for split in (TRAIN, VALIDATION)
        for name in (
            *(file.name for shard in read_index(folder / split).shards for file in shard.files),
            INDEX,
        )
    ]
    return {name: folder / name for name in names}


def _sizes(folder: Path) -> list[int]:
    indices = [read_index(folder / split) for split in (TRAIN, VALIDATION)]
    return [file.bytes for index in indices for shard in index.shards for file in shard.files]


def _check_stage(config: TrainConfig, lacking: list[RankOnHost], first: str, needed: int) -> None:
    """Raise UserError where nodes that lack a pack may keep no copy of it.

    first: host of rank 0. needed: bytes.
    """
    has_none = f"--data {config.data}: {by_host(lacking)} has no such folder, {first} (rank 0) has"
    if config.stage is None:
        raise UserError(
            f"{has_none}: --stage DIR sends it to DIR on the nodes that lack it, "
            f"{needed / 1e6:,.1f} MB; or copy it there, or name a folder that all nodes share"
        )
    if config.stage_mb is not None and config.stage_mb * 1e6 < needed:
        raise UserError(
            f"{has_none}: a node that lacks it needs all of it, {needed / 1e6:,.1f} MB, and "
            f"--stage-mb is {config.stage_mb:g}: leave --stage-mb out, or name a folder that all "
            "nodes share"
        )


@contextmanager
def _staged_copy(config: TrainConfig, fingerprint: str, run: str, node: int) -> Iterator[Path]:
    assert config.stage is not None, "checked"
    path = stage_path(config.stage, fingerprint, run, node)
    staged = StageFolder(path, fingerprint, keep=config.keep_staged)
    with closing(staged):
        yield staged.path
