"""A reader's view of the shards staged on the node's local disk."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from phalanx.data.packed.pack import Pack

POLL_S = 0.5
"""Time between two polls of the folder."""


class StagedView:
    """Redirects a pack's reads to the shards in `folder`, where another rank or thread stages and
    evicts them. Shards appear under their names only when they are complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._polled_at = -POLL_S
        self._staged: set[int] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return StagedView, (self.folder,)

    def apply(self, pack: Pack) -> None:
        """Poll the folder when due. Cost: one comparison when not."""
        if time.monotonic() - self._polled_at < POLL_S or not self._lock.acquire(blocking=False):
            return
        try:
            self._relocate(pack, self._list_staged(pack))
            self._polled_at = time.monotonic()
        finally:
            self._lock.release()

    def reset(self, pack: Pack) -> bool:
        """Read all shards from the pack itself until the next poll, and return whether any was
        staged."""
        with self._lock:
            changed = bool(self._staged)
            self._relocate(pack, set())
            self._polled_at = time.monotonic()
        return changed

    def _list_staged(self, pack: Pack) -> set[int]:
        try:
            names = {entry.name for entry in self.folder.iterdir()}
        except OSError:
            return set()
        return {
            number
            for number, shard in enumerate(pack.shards)
            if all(file.name in names for file in shard.files)
        }

    def _relocate(self, pack: Pack, staged: set[int]) -> None:
        for shard in staged - self._staged:
            pack.relocate(shard, self.folder)
        for shard in self._staged - staged:
            pack.relocate(shard, None)
        self._staged = staged
