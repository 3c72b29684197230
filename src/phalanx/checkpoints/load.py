"""Loading of the checkpoint that a run resumes from, the same on all ranks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from phalanx.checkpoints.checkpoint import load_checkpoint
from phalanx.checkpoints.find import newest_position
from phalanx.checkpoints.folder import IN_PROGRAM
from phalanx.checkpoints.manifest import MANIFEST, Manifest, folder_name, read_manifest
from phalanx.checkpoints.rank_state import load_rank_state
from phalanx.comm.file_copies import local_copies
from phalanx.comm.shared_folder import RankOnHost, by_host, gather_text, ranks_without
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy


def agreed_manifest(checkpoint: Path | None, group: RunGroup) -> Manifest | None:
    """Return the manifest of the checkpoint that all ranks resume from, as rank 0 sees it.
    Collective.

    Under a launcher each rank looks for the newest one itself, on the disk that it sees; where a
    node has none, `readable_everywhere` gives it a copy.
    Raises: UserError when this rank cannot read it; on every rank, when they see different ones,
            or one sees a newer one of the run beside it than rank 0 does.
    """
    own = None if checkpoint is None else _read_here(checkpoint, group)
    text = group.share("" if own is None else msgspec.json.encode(own).decode())
    agreed = msgspec.json.decode(text, type=Manifest) if text else None
    newest = (0, 0)
    if checkpoint is not None and agreed is not None:
        newest = newest_position(checkpoint.parent, run=agreed.run)
    newest_of_first = tuple(json.loads(group.share(json.dumps(newest))))
    seen = ""
    if own is not None and (agreed is None or own.sha256 != agreed.sha256):
        is_same_place = agreed is not None and own.position == agreed.position
        seen = "another " * is_same_place + folder_name(*own.position)
    elif newest > newest_of_first:
        seen = folder_name(*newest)
    seen_by = gather_text(group, f"{seen},{socket.gethostname()}")
    if problem := group.share(_other_checkpoints(checkpoint, seen_by)):
        raise UserError(problem)
    return agreed


def _read_here(checkpoint: Path, group: RunGroup) -> Manifest | None:
    """Return the manifest; None where a node other than rank 0's has no such folder."""
    if group.rank > 0 and not checkpoint.exists():
        return None
    return read_manifest(checkpoint)


def _other_checkpoints(checkpoint: Path | None, seen_by: list[str]) -> str:
    """Name the ranks that see another checkpoint than rank 0; empty: there are none.

    seen_by: of every rank, what it sees instead, or nothing, and its host, by a comma.
    """
    ranks: dict[str, list[RankOnHost]] = {}
    for rank, text in enumerate(seen_by):
        seen, host = text.split(",", 1)
        if seen:
            ranks.setdefault(seen, []).append(RankOnHost(rank, host))
    if not ranks:
        return ""
    others = "; ".join(f"{by_host(those)}: {seen}" for seen, those in ranks.items())
    return (
        f"{IN_PROGRAM.resume.rstrip('=')}: ranks see different checkpoints "
        f"(rank 0: {checkpoint or 'none'}; {others}): "
        "name a folder that all nodes share, or copy the newest checkpoint to all of them"
    )


@contextmanager
def readable_everywhere(checkpoint: Path, manifest: Manifest, group: RunGroup) -> Iterator[Path]:
    """Give each rank the folder in which it can read a checkpoint of rank 0's. Collective, at the
    beginning of the block and at its end.

    A node that does not see it gets a copy in its temporary folder until the end of the block.
    manifest: agreed on by all ranks.
    Raises: UserError, on every rank, when it cannot be read, sent or written.
    """
    files = {name: checkpoint / name for name in (*manifest.files, MANIFEST)}
    is_wanted = group.rank > 0 and not _is_here(checkpoint, manifest)
    with local_copies(group, files, is_wanted=is_wanted) as copied:
        yield copied or checkpoint


def _is_here(checkpoint: Path, manifest: Manifest) -> bool:
    try:
        return read_manifest(checkpoint).sha256 == manifest.sha256
    except UserError:
        return False


def check_written_folder(folder: Path, group: RunGroup) -> tuple[str, bool]:
    """Return a line for the user where nodes do not share the folder of a run's checkpoints, which
    rank 0 alone writes then, else an empty one; and whether all ranks share it. Collective.

    Raises: UserError, on every rank, where a node has newer checkpoints there than rank 0 sees: a
            run that has moved to other nodes would begin anew beside them.
    """
    host = socket.gethostname()
    seen_by = gather_text(group, f"{host},{json.dumps(newest_position(folder))}")
    hosts, newest = zip(*(text.split(",", 1) for text in seen_by), strict=True)
    if len(set(hosts)) == 1:
        return "", group.size == 1 or not ranks_without(group, folder)
    positions = [tuple(json.loads(text)) for text in newest]
    rank = positions.index(max(positions))
    if positions[rank] > positions[0]:
        raise UserError(
            f"checkpoints in {folder}: rank {rank} ({hosts[rank]}) sees "
            f"{folder_name(*positions[rank])}, and rank 0 ({hosts[0]}) "
            f"{folder_name(*positions[0]) if any(positions[0]) else 'none'}: start the run with "
            f"{hosts[rank]} as its first node, or copy them to {hosts[0]}, or name another folder"
        )
    others = ranks_without(group, folder)
    if not others:
        return "", True
    line = (
        f"checkpoints: rank 0 writes all of each into {folder} on {hosts[0]}, a folder that "
        f"{by_host(others)} does not share"
    )
    return line, False


def load(checkpoint: Path, strategy: Strategy) -> tuple[Manifest, list[str]]:
    """Load what any strategy has saved of this very model, and return lines for the user on what
    did not fit. Collective.

    Raises: UserError when a file is damaged.
    """
    if strategy.is_sharded:
        from phalanx.checkpoints.sharded import load_sharded

        manifest = load_sharded(checkpoint, strategy)
    else:
        parts = (strategy.model, strategy.optimizer)
        manifest = load_checkpoint(checkpoint, *parts, strategy.rank)
    return manifest, list(filter(None, [load_rank_state(checkpoint, manifest, strategy)]))
