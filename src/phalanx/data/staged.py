"""Shards that lie on the node's own disk for a while, and a reader's look at which there are."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from phalanx.data.packed.pack import Pack

LOOK_S = 0.5
"""Between two looks at the folder."""


class StagedView:
    """Tells a pack which of its shards to read from `folder`, where another rank or thread brings
    them and takes them away. They appear under their names only when they are whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._looked_at = -LOOK_S
        self._there: set[int] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return StagedView, (self.folder,)

    def apply(self, pack: Pack) -> None:
        """Look again when it is time; no more than a comparison when it is not."""
        if time.monotonic() - self._looked_at < LOOK_S or not self._lock.acquire(blocking=False):
            return
        try:
            self._relocate(pack, self._found(pack))
            self._looked_at = time.monotonic()
        finally:
            self._lock.release()

    def leave(self, pack: Pack) -> bool:
        """Read everything from the pack itself until the next look; whether that is a change."""
        with self._lock:
            changed = bool(self._there)
            self._relocate(pack, set())
            self._looked_at = time.monotonic()
        return changed

    def _found(self, pack: Pack) -> set[int]:
        try:
            names = {entry.name for entry in self.folder.iterdir()}
        except OSError:
            return set()
        return {
            number
            for number, shard in enumerate(pack.shards)
            if all(file.name in names for file in shard.files)
        }

    def _relocate(self, pack: Pack, found: set[int]) -> None:
        for shard in found - self._there:
            pack.relocate(shard, self.folder)
        for shard in self._there - found:
            pack.relocate(shard, None)
        self._there = found
