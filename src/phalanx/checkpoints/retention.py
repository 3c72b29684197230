"""Removal of older checkpoints of a run, once a newer one is whole."""

from __future__ import annotations

import math
from pathlib import Path

from phalanx.checkpoints.folder import readable_folders, remove
from phalanx.checkpoints.manifest import read_manifest, verify
from phalanx.errors import UserError

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
        """Remove what is no longer kept. Cost: the files of each one that stays are read once.

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
