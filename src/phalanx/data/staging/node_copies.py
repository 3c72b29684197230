"""Copies of rank 0's data on nodes that lack it, so that none decides by other files than rank 0.

A published data set is read into memory, from a copy in the temporary folder that is removed at
once. A pack is read during the whole run: its copy lies in the folder of `--stage`.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from phalanx.comm.file_copies import BroadcastingRanks, local_copies
from phalanx.comm.shared_folder import RankOnHost, by_host, gather_text
from phalanx.data.datasets.catalog import FILE_SETS
from phalanx.data.packed.index import INDEX
from phalanx.data.packed.index_file import read_index
from phalanx.data.published.file_sets import find_file, find_folder, search_roots
from phalanx.data.sources.packed import TRAIN, VALIDATION, PackDescription, Packed, describe
from phalanx.data.staging.stage_folder import StageFolder, stage_path
from phalanx.errors import UserError


class RanksOnNodes(BroadcastingRanks, Protocol):
    """Ranks of several nodes."""

    @property
    def node(self) -> int:
        """Number of this rank's node."""


@contextmanager
def dataset_folder(
    name: str, root: Path | None, group: RanksOnNodes | None
) -> Iterator[Path | None]:
    """Give each rank the folder under which it finds the data set of rank 0. Collective, at the
    beginning of the block and at its end.

    name: of the data set. root: in which rank 0 finds it; None: where it is by default. group: None
        where all ranks are on one node.
    Raises: UserError, on every rank, when a file cannot be sent or written.
    """
    file_set = next((files for each, files in FILE_SETS.items() if each == name), None)
    if file_set is None or group is None:  # embedded data, or one node
        yield root
        return
    # A root that this node lacks is an error on rank 0 alone.
    roots = [] if group.rank > 0 and root is not None and not root.is_dir() else search_roots(root)
    folder, files = find_folder(roots, file_set), {}
    if folder is not None and group.rank == 0:
        found = [find_file(folder, file) for file in file_set.files]
        files = {path.name: path for path in found if path is not None}
    is_wanted = group.rank > 0 and folder is None
    with local_copies(group, files, is_wanted=is_wanted) as copied:
        yield copied or root


def packed_everywhere(
    packed: Packed, group: RanksOnNodes | None, copies: ExitStack
) -> tuple[Packed, PackDescription, str]:
    """Return the pack as this rank reads it, and a line for the user where nodes lacked its folder
    and have got a copy. Collective.

    group: as of `dataset_folder`. copies: removes this node's copy when it is closed, which is
        collective, too.
    Raises: UserError when this rank cannot read it; on every rank, when nodes lack the folder and
            `--stage` names none for copies, or when they have other data in it.
    """
    folder = Path(packed.folder)
    lacking = [] if group is None else _ranks_lacking(folder, group)
    if group is None or not lacking:
        return packed, describe(folder), ""
    is_wanted = group.rank in {rank for rank, _ in lacking}
    described = None if is_wanted else describe(folder)
    own_bytes = 0 if described is None else sum(_sizes(folder))
    needed = int(group.share(str(own_bytes)))
    _check_stage(packed, lacking, group.share(socket.gethostname()), needed)
    fingerprint = group.share("" if described is None else described.fingerprint)
    run = group.share(f"{socket.gethostname()}-{os.getpid()}")
    files = _files(folder) if group.rank == 0 else {}
    copied = copies.enter_context(
        local_copies(
            group,
            files,
            is_wanted=is_wanted,
            make_folder=partial(_staged_copy, packed, fingerprint, run, group.node),
        )
    )
    name = group.share("" if described is None else described.name)
    line = (
        f"--data {folder}: {by_host(lacking)} had no such folder, and got a copy in --stage "
        f"{packed.stage}, {needed / 1e6:,.1f} MB; the other nodes read it in place"
    )
    described = replace(describe(copied or folder), name=name)
    # Nodes with copies have all of it.
    here = replace(packed, folder=described.folder, stage=None, stage_mb=None, keep_staged=False)
    return here, described, line


def _ranks_lacking(folder: Path, group: RanksOnNodes) -> list[RankOnHost]:
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
            f"--data {folder}: {by_host(ranks['other'])} has different data from {by_rank[0][1]} "
            "(rank 0): copy one of them to all nodes, or use a shared folder"
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


def _check_stage(packed: Packed, lacking: list[RankOnHost], first: str, needed: int) -> None:
    """Raise UserError where nodes that lack a pack may keep no copy of it.

    first: host of rank 0. needed: bytes.
    """
    has_none = (
        f"--data {packed.folder}: {by_host(lacking)} has no such folder, but {first} (rank 0) has"
    )
    if packed.stage is None:
        raise UserError(
            f"{has_none}: --stage DIR sends it to DIR on the nodes that lack it, "
            f"{needed / 1e6:,.1f} MB; or copy it there, or use a folder that all nodes share"
        )
    if packed.stage_mb is not None and packed.stage_mb * 1e6 < needed:
        raise UserError(
            f"{has_none}: a node that lacks it needs all of it, {needed / 1e6:,.1f} MB, and "
            f"--stage-mb is {packed.stage_mb:g}: leave --stage-mb out, or use a folder that all "
            "nodes share"
        )


@contextmanager
def _staged_copy(packed: Packed, fingerprint: str, run: str, node: int) -> Iterator[Path]:
    assert packed.stage is not None, "checked"
    path = stage_path(Path(packed.stage), fingerprint, run, node)
    staged = StageFolder(path, fingerprint, keep=packed.keep_staged)
    with closing(staged):
        yield staged.path
