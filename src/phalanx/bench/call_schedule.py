"""Measured cases, their order and the number of calls. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from phalanx.records.collectives import Collective

Item = TypeVar("Item")

ROUNDS = 8
MOST_CALLS = 400  # enough for a 99th percentile per path and size
FEWEST_CALLS = 10

# Split into one chunk per rank, so their buffers hold a multiple of the world size.
_IN_PARTS = frozenset({"reduce_scatter", "all_gather", "all_to_all"})


@dataclass(frozen=True, kw_only=True)
class Case:
    """One collective on one size of buffer."""

    collective: Collective
    count: int  # elements of the larger of a rank's two buffers
    num_bytes: int


def cases(
    collectives: Sequence[Collective], sizes_bytes: Sequence[int], *, itemsize: int, ranks: int
) -> list[Case]:
    """Return the cases; sizes are rounded up to whole elements, and to one chunk per rank."""
    made = []
    for collective in collectives:
        if collective == "barrier":
            made.append(Case(collective=collective, count=0, num_bytes=0))
            continue
        unit = ranks if collective in _IN_PARTS else 1
        counts = sorted({-(-size // (itemsize * unit)) * unit for size in sizes_bytes})
        made += [Case(collective=collective, count=n, num_bytes=n * itemsize) for n in counts]
    return made


@dataclass(frozen=True, kw_only=True)
class CallSchedule:
    """Number of rounds, and of calls per path in each; in a round all paths take turns."""

    rounds: int
    calls: Mapping[str, int]  # calls of each path in a round


def schedule(costs_s: Mapping[str, float], *, budget_s: float, repeats: int | None) -> CallSchedule:
    """Return the schedule that gives every path an equal share of the time.

    costs_s: seconds per call of each path, including filling and checking the buffers.
    """
    if repeats is not None:
        rounds = min(ROUNDS, repeats)
        return CallSchedule(rounds=rounds, calls=dict.fromkeys(costs_s, -(-repeats // rounds)))
    share_s = budget_s / max(1, len(costs_s))
    wanted = {path: share_s / max(cost_s, 1e-9) for path, cost_s in costs_s.items()}
    rounds = ROUNDS if all(number >= ROUNDS for number in wanted.values()) else FEWEST_CALLS // 2
    lowest = -(-FEWEST_CALLS // rounds)
    highest = MOST_CALLS // rounds
    calls = {path: min(max(int(n) // rounds, lowest), highest) for path, n in wanted.items()}
    return CallSchedule(rounds=rounds, calls=calls)


def turns(items: Sequence[Item], rounds: int) -> Iterator[tuple[int, Item]]:
    """Yield (round, item); each round begins with another item."""
    for number in range(rounds):
        shift = number % max(1, len(items))
        for item in (*items[shift:], *items[:shift]):
            yield number, item
