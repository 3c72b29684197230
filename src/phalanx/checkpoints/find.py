"""Choice of the checkpoint to resume from, check of the folder to write new ones into, and removal
of older ones, once a newer one is whole.

No torch, no MPI: all of it is decided before anything is started.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.checkpoints.folder import (
    readable_folders,
    remove,
    unfinished_folders,
)
from phalanx.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    read_manifest,
    verify,
)
from phalanx.errors import UserError
from phalanx.records.progress import position_of

MAX_PASSED_OVER = 5
"""Checkpoints that are named, each with its problem."""


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """A complete checkpoint."""

    path: Path
    manifest: Manifest
    skipped: tuple[str, ...] = ()
    """Newer ones that are not complete, and why: a line each."""


def find_checkpoint(path: Path) -> FoundCheckpoint:
    """Return `path` when it is a checkpoint, else the newest complete one in the folder `path`.

    Newest: of the run that saved last, the one that has seen most samples. Cost: its files are
    read.
    Raises: UserError when there is none, or `path` is a checkpoint that is damaged.
    """
    if (path / MANIFEST).is_file():
        return FoundCheckpoint(path=path, manifest=verify(path))
    if not path.is_dir():
        raise UserError(f"resume={path}: there is no such folder")
    found, problems = _search(path)
    if found is not None:
        return found
    if not problems:
        raise UserError(f"resume={path}: no checkpoint (epoch-*/{MANIFEST}) in this folder")
    newest = max(problems, key=lambda checkpoint: position_of(checkpoint.name))
    raise UserError(f"resume={path}: no complete checkpoint in it: {problems[newest]}")


def find_newest(folder: Path) -> tuple[FoundCheckpoint | None, list[str]]:
    """Return the newest valid checkpoint in `folder`, None where there is none, and a line for the
    user for each newer one that is damaged or was not finished.

    Newest: as in `find_checkpoint`. Cost: its files are read. Raises: OSError.
    """
    found, problems = _search(folder)
    passed = list(found.skipped) if found else _passed_over(problems)
    position = (-1, 0) if found is None else found.manifest.position
    unfinished = [path for path in unfinished_folders(folder) if position_of(path.name) > position]
    lines = _passed_over({path: f"checkpoint {path} was not finished" for path in unfinished})
    return found, [*passed, *lines]


def find_to_resume(
    folder: Path | None, place: Path | None, *, may_begin: bool
) -> tuple[FoundCheckpoint | None, list[str]]:
    """Return the checkpoint that a run resumes from, None if it starts anew, and lines for the
    user. Cost: as of `find_newest`.

    folder: of the run's checkpoints. place: a checkpoint, or a folder of them, to resume from.
    may_begin: also where those in the folder are damaged.
    Raises: UserError for a folder of another run, or a checkpoint that is missing or damaged.
    """
    lines: list[str] = []
    if may_begin and folder is not None:
        found, lines = find_newest(folder)
    else:
        is_missing = place == folder and place is not None and not readable_folders(place)
        found = None if place is None or is_missing else find_checkpoint(place)
        lines = [*found.skipped] if found is not None else []
    if found is None and place is not None:
        lines = [*lines, f"no checkpoint in {folder} yet: training from the start"]
    if folder is not None:
        check_checkpoint_dir(folder, found, may_begin=may_begin)
    return found, lines


def nothing_left(checkpoint: Path, done: str) -> str:
    """Return the line for the user on a completed run. done: epochs or steps."""
    return f"checkpoint {checkpoint} has done {done}, all that were requested: nothing is left"


def _search(folder: Path) -> tuple[FoundCheckpoint | None, dict[Path, str]]:
    """Return the newest valid checkpoint, and the problems of those that are not valid."""
    manifests, problems = _read_manifests(folder)
    for checkpoint, manifest in _newest_first(manifests):
        try:
            verify(checkpoint)
        except UserError as error:
            problems[checkpoint] = str(error)
            continue
        newer = {p: text for p, text in problems.items() if position_of(p.name) > manifest.position}
        notices = tuple(_passed_over(newer))
        return FoundCheckpoint(path=checkpoint, manifest=manifest, skipped=notices), problems
    return None, problems


def _passed_over(problems: Mapping[Path, str]) -> list[str]:
    """Return a line for each of the newest of these, and one that counts the others."""
    newest = sorted(problems, key=lambda path: position_of(path.name))[-MAX_PASSED_OVER:]
    lines = [f"skipped: {problems[path].split('; ')[0]}" for path in newest]
    more = len(problems) - len(lines)
    return [
        *([f"skipped: {more:,} older checkpoints"] if more else []),
        *lines,
    ]


def has_checkpoints(path: Path) -> bool:
    """Return whether `path` is a checkpoint, or a folder with some."""
    return (path / MANIFEST).is_file() or bool(readable_folders(path))


def _read_manifests(folder: Path) -> tuple[dict[Path, Manifest], dict[Path, str]]:
    """Return the readable manifests, and the problem of each other checkpoint."""
    manifests, problems = {}, {}
    for checkpoint in readable_folders(folder):
        try:
            manifests[checkpoint] = read_manifest(checkpoint)
        except UserError as error:
            problems[checkpoint] = str(error)
    return manifests, problems


def newest_position(folder: Path, *, run: str | None = None) -> tuple[int, int]:
    """Return the position of the newest checkpoint in `folder`, (0, 0) where there is none. Its
    files are not checked.

    run: id of the run whose checkpoints count; None: all do.
    """
    try:
        manifests, _ = _read_manifests(folder)
    except OSError:
        return (0, 0)
    positions = [m.position for m in manifests.values() if run in (None, m.run)]
    return max(positions, default=(0, 0))


def _newest_first(manifests: Mapping[Path, Manifest]) -> list[tuple[Path, Manifest]]:
    """Return the checkpoints of the run that saved last, newest first."""
    if not manifests:
        return []
    run = max(manifests.values(), key=lambda manifest: manifest.saved_at).run
    of_run = [(path, manifest) for path, manifest in manifests.items() if manifest.run == run]
    return sorted(of_run, key=lambda one: (one[1].position, one[1].saved_at), reverse=True)


def check_checkpoint_dir(
    folder: Path,
    resumed: FoundCheckpoint | None,
    *,
    may_begin: bool = False,
) -> None:
    """Raise UserError when `folder` holds checkpoints of another run than the one that resumes, or
    cannot be written.

    may_begin: although it holds checkpoints, none of which is valid.
    """
    where = f"checkpoint_dir={folder}"
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{where}: {existing} is not a writable folder")
    manifests, problems = _read_manifests(folder)
    if not manifests and not problems:
        return
    newest = max((*manifests, *problems), key=lambda checkpoint: position_of(checkpoint.name))
    if resumed is None:
        if may_begin:
            return
        raise UserError(
            f"{where} holds the checkpoints of a run, up to {newest.name}: resume from them by "
            f"resume={folder}, or use another folder"
        )
    if manifests and all(m.run != resumed.manifest.run for m in manifests.values()):
        raise UserError(
            f"{where} has checkpoints of a different run from {resumed.path}: use another folder"
        )


MAX_WITHIN_EPOCH = 2
"""Checkpoints within epochs that are kept: the newest, and one to resume from should it be damaged.
Those of full epochs all stay."""


class Retention:
    """Removal of older checkpoints from the folder of a run, whoever wrote them."""

    def __init__(self, folder: Path, keep: int | None) -> None:
        """keep: number of valid ones that stay, of full epochs and within them; None: all of full
        epochs, and `MAX_WITHIN_EPOCH` within them."""
        self._folder, self._keep = folder, keep
        self._valid: set[Path] = set()
        """Verified in this process, or written by it."""

    def remove_older(self, newest: Path) -> None:
        """Remove checkpoints that are no longer needed. Cost: the files of each one that stays are
        read once.

        newest: just written, so that it is valid; it stays, whatever a clock that was set back
            says. One that a run has resumed from therefore goes only when a newer one is whole.
        """
        self._valid.add(newest)
        if self._keep is None:
            within = [*self._folder.glob("epoch-*-samples-*")]
            if newest in within:
                for path in self._newest_first(within, newest)[MAX_WITHIN_EPOCH:]:
                    remove(path)
            return
        num_valid = 0
        for path in self._newest_first(readable_folders(self._folder), newest):
            if num_valid == self._keep:
                self._valid.discard(path)
                remove(path)
            elif self._is_valid(path):  # others go when so many newer ones are valid
                num_valid += 1

    def _newest_first(self, paths: list[Path], newest: Path) -> list[Path]:
        saved = dict.fromkeys(paths, -1.0)  # unreadable: of no use to anybody
        for path in paths:
            try:
                saved[path] = read_manifest(path).saved_at
            except UserError:
                continue
        saved[newest] = math.inf
        return sorted(saved, key=lambda path: -saved[path])

    def _is_valid(self, path: Path) -> bool:
        if path not in self._valid:
            try:
                verify(path)
            except UserError:
                return False
            self._valid.add(path)
        return True
