"""Loading of the checkpoint that a run resumes from, the same on all ranks."""

from __future__ import annotations

import socket
from pathlib import Path

from phalanx.checkpoints.checkpoint import load_checkpoint
from phalanx.checkpoints.folder import COMMAND_LINE, OptionNames
from phalanx.checkpoints.manifest import Manifest, folder_name, read_manifest
from phalanx.checkpoints.rank_state import load_rank_state
from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy

MAX_NAMED_RANKS = 8
"""Ranks that an error lists."""


def agreed_manifest(
    checkpoint: Path | None, group: RunGroup, names: OptionNames = COMMAND_LINE
) -> Manifest | None:
    """Read the manifest of the checkpoint that all ranks resume from. Collective.

    Under a launcher each rank looks for the newest one itself, on the disk that it sees.
    Raises: UserError when this rank cannot read it; on every rank, when they see different ones.
    """
    manifest = None if checkpoint is None else _read_here(checkpoint, group)
    sha256, position = (manifest.sha256, manifest.position) if manifest else ("", (0, 0))
    rows = group.gather([*position, float(group.share(sha256) != sha256)])
    problem = group.share(_other_checkpoints(checkpoint, rows, names) if rows is not None else "")
    if problem:
        raise UserError(problem)
    return manifest


def _read_here(checkpoint: Path, group: RunGroup) -> Manifest:
    try:
        return read_manifest(checkpoint)
    except UserError as error:
        if group.node == 0:
            raise
        raise UserError(
            f"{error}, on {socket.gethostname()}: every node must see it: name a folder that all "
            "share, or copy the checkpoint to the same path"
        ) from error


def _other_checkpoints(checkpoint: Path | None, rows: list[list[float]], names: OptionNames) -> str:
    """Name the ranks that see another checkpoint than rank 0; empty: there are none.

    rows: epochs done, samples seen, and whether it is another one, of every rank.
    """
    ranks: dict[str, list[str]] = {}
    for rank, (epochs, samples, is_another) in enumerate(rows):
        if is_another:
            name = folder_name(int(epochs), int(samples)) if epochs or samples else "none"
            ranks.setdefault(name, []).append(str(rank))
    if not ranks:
        return ""
    others = "; ".join(
        f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers[:MAX_NAMED_RANKS])}"
        f"{', …' * (len(numbers) > MAX_NAMED_RANKS)}: "
        f"{f'another {name}' if checkpoint and checkpoint.name == name else name}"
        for name, numbers in ranks.items()
    )
    return (
        f"{names.resume.rstrip(' =')}: ranks see different checkpoints "
        f"(rank 0: {checkpoint or 'none'}; {others}): "
        "name a folder that all nodes share, or copy the newest checkpoint to all of them"
    )


def load(checkpoint: Path, strategy: Strategy) -> tuple[Manifest, list[str]]:
    """Load what any strategy has saved, and return lines for the user on what did not fit.
    Collective.

    Raises: UserError when a file is damaged or the tensors are not those of the model.
    """
    if strategy.is_sharded:
        from phalanx.checkpoints.sharded import load_sharded

        manifest = load_sharded(checkpoint, strategy)
    else:
        parts = (strategy.model, strategy.optimizer)
        manifest = load_checkpoint(checkpoint, *parts, strategy.rank)
    return manifest, list(filter(None, [load_rank_state(checkpoint, manifest, strategy)]))
