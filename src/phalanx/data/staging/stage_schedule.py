"""Choice of the next shard to stage on the node's disk, and of the shards to evict: pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from phalanx.data.packed.index import File
from phalanx.data.sampler import shard_windows


@dataclass(frozen=True, kw_only=True)
class StageUnit:
    """A shard of a split."""

    split: str
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class StageMove(NamedTuple):
    """One unit to stage, and the units to evict for it."""

    unit: int
    evict: list[int]


@dataclass(frozen=True, kw_only=True)
class ReadSchedule:
    """Reading schedule of a run: the windows of an epoch's order, then the validation data.

    Units are numbered: shards for training, then those for validation.
    """

    first_samples: Sequence[int]
    """Number of the first sample of each training shard, then the number of samples."""
    num_validation_shards: int
    window: int | None
    """Shards in a window of the shuffle; None: all at once."""
    seed: int
    epochs: int

    def ahead(self, epoch: int, sample: int) -> list[list[int]]:
        """Return the units of the current window and of all later ones until the end of the next
        epoch. sample: number of samples of the epoch already read."""
        windows, first = self._of_epoch(epoch), self.first_samples
        sizes = (sum(first[s + 1] - first[s] for s in shards) for shards in windows[:-1])
        now = bisect_right([*accumulate(sizes)], sample)
        later = self._of_epoch(epoch + 1) if epoch + 1 < self.epochs else []
        return windows[now:] + later

    def _of_epoch(self, epoch: int) -> list[list[int]]:
        num_shards = len(self.first_samples) - 1
        validation = [*range(num_shards, num_shards + self.num_validation_shards)]
        if self.window is None:
            return [[*range(num_shards)], validation]
        return [*shard_windows(num_shards, self.window, self.seed, epoch), validation]


def next_move(
    windows: Sequence[Sequence[int]],
    held: Collection[int],
    sizes: Sequence[int],
    max_bytes: float | None,
    *,
    given_up: Collection[int] = (),
) -> StageMove | None:
    """Return the missing unit that is needed first and fits after evicting units that are needed
    later than it, the latest first; None: nothing to do.

    windows: units in the order in which they are needed, from now on. sizes: in bytes, of every
    unit. given_up: units not to stage. Source: Belady 1966, doi:10.1147/sj.52.0078.
    """
    next_use: dict[int, int] = {}
    for number, units in enumerate(windows):
        for unit in units:
            next_use.setdefault(unit, number)
    missing = [u for u in next_use if u not in held and u not in given_up]
    free = float("inf") if max_bytes is None else max_bytes - sum(sizes[u] for u in held)
    never = len(windows)
    latest_first = sorted(held, key=lambda unit: (-next_use.get(unit, never), unit))
    for unit in missing:
        available, evict = free, []
        for other in latest_first:
            if available >= sizes[unit] or next_use.get(other, never) <= next_use[unit]:
                break
            evict.append(other)
            available += sizes[other]
        if available >= sizes[unit]:
            return StageMove(unit, evict)
    return None
