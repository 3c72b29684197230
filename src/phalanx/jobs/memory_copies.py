"""Copies of a run's checkpoints in the memory of its nodes, as the process that owns the run sees
them: it finds them after a loss, and removes them in the end.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.errors import UserError
from phalanx.jobs import node_copies
from phalanx.jobs.allocation import Allocation, is_this_machine
from phalanx.jobs.elsewhere import run_on_each
from phalanx.jobs.node_copies import (
    folder_of,
    list_copies,
    owned_folder,
    remove_abandoned,
)
from phalanx.records.progress import position_of

OPTION = "--memory-checkpoint-seconds"
COPIES = "PHALANX_MEMORY_COPIES"
"""Variable of the ranks: seconds between two copies, and the folder of the run's."""
VALID = "PHALANX_VALID_COPIES"
"""Variable of the ranks of a restart: SHA-256 of the manifests of the copies that are valid."""
READ_S = 60.0
"""Seconds for a node to read all of its copies."""
HERE = "this machine"

NOT_COPIED = {
    "server": "workers run out of step, so there is no common moment for a copy",
    "local": "ranks average their updates before each copy, so copies by a clock would change the "
    "results",
}
"""Strategies that keep no copies in memory, and why."""


class CopySettings(NamedTuple):
    """Place and interval of the copies of the ranks."""

    folder: Path
    every_s: float


class MemoryCopy(NamedTuple):
    """A valid copy of a checkpoint."""

    place: Path
    host: str
    sha256: str
    position: tuple[int, int]
    """Epochs done, and samples seen of the next."""
    train_samples: int
    """Training samples of an epoch; 0 if unknown."""
    batch_size: int
    saved_at: float

    def steps(self, position: tuple[int, int]) -> int | None:
        """Return the updates that lead to a position of the run; None where that is not known."""
        epochs, seen = position
        if epochs and not self.train_samples:
            return None
        each, within = -(-self.train_samples // self.batch_size), -(-seen // self.batch_size)
        return epochs * each + within

    def describe(self, former: str | None) -> str:
        """Say that a run resumes from this copy. former: newest checkpoint on the disk."""
        steps = self.steps(self.position)
        step = "" if steps is None else f"step {steps}, "
        text = f"resuming from the copy in the memory of {self.host}, {step}{self.place.name}"
        if former is None:
            return f"{text}; there is none on the disk"
        behind = self.steps(position_of(Path(former).name))
        which = former if behind is None else f"of step {behind}"
        return f"{text}; the newest on the disk is {which}"


def check_copied(every_s: float | None, strategy: str, checkpoint_dir: Path | None) -> None:
    """Raises: UserError for a training that keeps no copies in memory."""
    if every_s is None:
        return
    if strategy in NOT_COPIED:
        raise UserError(
            f"{OPTION} and --strategy {strategy} exclude each other: {NOT_COPIED[strategy]}; "
            f"restarts read the checkpoints on the disk: leave {OPTION} out"
        )
    if checkpoint_dir is None:
        raise UserError(
            f"{OPTION} {every_s:g} needs --checkpoint-dir: copies in memory are of its checkpoints"
        )


def copy_settings(environ: Mapping[str, str]) -> CopySettings | None:
    """Return where this rank keeps copies in memory; None: nowhere."""
    every_s, _, folder = environ.get(COPIES, "").partition(" ")
    return CopySettings(Path(folder), float(every_s)) if folder else None


def valid_copies(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the SHA-256 of the manifests from which this rank may resume."""
    return frozenset(environ.get(VALID, "").split())


def forget_copies() -> None:
    """Remove what runs have left in memory whose owner was killed, and let ranks that are started
    from now on keep no copies, not those of a run that has started this process."""
    remove_abandoned()
    for name in (COPIES, VALID):
        os.environ.pop(name, None)


@contextlib.contextmanager
def copies_on(
    nodes: Allocation, token: str, every_s: float | None
) -> Iterator[CopiesOnNodes | None]:
    """Have the ranks that are started in the block keep copies, which are removed at its end.

    nodes: of the run. token: in the environment of all that it starts. every_s: None: no copies.
    """
    if every_s is None:
        yield None
        return
    copies = CopiesOnNodes(nodes, token)
    os.environ[COPIES] = f"{every_s:g} {copies.folder}"
    try:
        with owned_folder(token):
            yield copies
    finally:
        for name in (COPIES, VALID):
            os.environ.pop(name, None)
        # Nodes that do not answer keep theirs until the next run there.
        run_on_each(nodes, node_copies.__file__, ("remove", str(copies.folder)))


class CopiesOnNodes:
    """The copies of one run, on all its nodes."""

    def __init__(self, nodes: Allocation, token: str) -> None:
        self._nodes, self.folder = nodes, folder_of(token)

    def find(self, silent: Collection[str]) -> tuple[MemoryCopy | None, list[str]]:
        """Return the newest valid copy, and a line for each newer one that is not valid; from now
        on ranks that are started may resume from those that are valid.

        silent: nodes that do not answer.
        """
        here = next((n.name for n in self._nodes.nodes if is_this_machine(n.name)), HERE)
        rows = [(here, row) for row in list_copies(self.folder)]
        answering = tuple(node for node in self._nodes.nodes if node.name not in silent)
        asked = replace(self._nodes, nodes=answering)
        words = ("list", str(self.folder))
        found, failed = run_on_each(asked, node_copies.__file__, words, timeout_s=READ_S)
        rows += [(name, row) for name, text in found.items() for row in json.loads(text)]
        lines = [
            f"copies in the memory of {it} cannot be read: {why}" for it, why in failed.items()
        ]
        newest, passed = newest_copy(self.folder, rows)
        valid = sorted({row["sha256"] for _, row in rows if not row["problem"]})
        os.environ[VALID] = " ".join(valid)
        return newest, [*lines, *passed]


def newest_copy(
    folder: Path, rows: Sequence[tuple[str, Mapping[str, Any]]]
) -> tuple[MemoryCopy | None, list[str]]:
    """Return the newest valid copy, of the run that saved last, and a line for each newer one that
    is not valid.

    rows: of `list_copies`, each with its host.
    """
    valid = [_copy(folder, host, row) for host, row in rows if not row["problem"]]
    newest: MemoryCopy | None = None
    if valid:
        last = max(valid, key=lambda copy: copy.saved_at).place.parent
        of_run = [copy for copy in valid if copy.place.parent == last]
        newest = max(of_run, key=lambda copy: copy.position)
    least = (-1, 0) if newest is None else newest.position
    lines = [
        f"skipped: the copy {Path(row['place']).name} in the memory of {host} {row['problem']}"
        for host, row in rows
        if row["problem"] and position_of(Path(row["place"]).name) > least
    ]
    return newest, lines


def _copy(folder: Path, host: str, row: Mapping[str, Any]) -> MemoryCopy:
    return MemoryCopy(
        place=folder / row["place"],
        host=host,
        sha256=row["sha256"],
        position=(row["epochs_done"], row["samples_seen"]),
        train_samples=row["train_samples"],
        batch_size=row["global_batch_size"],
        saved_at=row["saved_at"],
    )
