"""Choice of the next shard to stage on the node's disk, and of the shards to evict: pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.data.order import shard_windows
from phalanx.data.packed.index import File


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A shard of a split."""

    split: str
    files: tuple[File, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class Move(NamedTuple):
    """One unit to bring, and those that make room for it."""

    unit: int
    evict: list[int]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Reading schedule of a run: the windows of an epoch's order, then the validation data.

    Units are numbered: shards for training, then those for validation.
    """

    first_samples: Sequence[int]
    """Of each shard for training, and in the end their number."""
    num_validation_shards: int
    window: int | None
    """Shards in a window of the shuffle; None: all at once."""
    seed: int
    epochs: int

    def ahead(self, epoch: int, sample: int) -> list[list[int]]:
        """Units of the window that is read now, and of those that follow until the end of the next
        epoch. sample: so many of the epoch have been given out."""
        windows = self._of_epoch(epoch)
        now = self._window_at(windows, sample)
        later = self._of_epoch(epoch + 1) if epoch + 1 < self.epochs else []
        return windows[now:] + later

    def _of_epoch(self, epoch: int) -> list[list[int]]:
        num_shards = len(self.first_samples) - 1
        validation = [*range(num_shards, num_shards + self.num_validation_shards)]
        if self.window is None:
            return [[*range(num_shards)], validation]
        return [*shard_windows(num_shards, self.window, self.seed, epoch), validation]

    def _window_at(self, windows: list[list[int]], sample: int) -> int:
        ends, end = [], 0
        for shards in windows[:-1]:
            end += sum(self.first_samples[s + 1] - self.first_samples[s] for s in shards)
            ends.append(end)
        return bisect_right(ends, sample)


def next_move(
    windows: Sequence[Sequence[int]],
    held: Collection[int],
    sizes: Sequence[int],
    most_bytes: float | None,
    *,
    given_up: Collection[int] = (),
) -> Move | None:
    """The unit that is needed first and is not there, where it fits when those go that are needed
    later than it, the last of them first; None: nothing is to be done.

    windows: units in the order in which they are needed, from now on. sizes: in bytes, of every
    unit. given_up: not to be brought. Source: Belady 1966, doi:10.1147/sj.52.0078.
    """
    next_use: dict[int, int] = {}
    for number, units in enumerate(windows):
        for unit in units:
            next_use.setdefault(unit, number)
    missing = [u for u in next_use if u not in held and u not in given_up]
    free = float("inf") if most_bytes is None else most_bytes - sum(sizes[u] for u in held)
    never = len(windows)
    latest_first = sorted(held, key=lambda unit: (-next_use.get(unit, never), unit))
    for unit in missing:
        room, evict = free, []
        for other in latest_first:
            if room >= sizes[unit] or next_use.get(other, never) <= next_use[unit]:
                break
            evict.append(other)
            room += sizes[other]
        if room >= sizes[unit]:
            return Move(unit, evict)
    return None
