"""Sums of numbers that do not depend on their order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from phalanx.parallel.run_group import RunGroup


def sum_over_ranks(group: RunGroup, columns: Sequence[Sequence[float]]) -> list[float]:
    """Return the sum of each column over the ranks, rounded once: the same however numbers are
    spread over them. Collective.

    columns: of this rank, equally many on each, of any lengths. Cost: rank 0 gets every number.
    """
    longest = max(map(len, columns), default=0)
    widths = group.gather([longest])
    width = 1 + int(group.share("" if widths is None else str(int(max(row[0] for row in widths)))))
    rows = group.gather([part for own in columns for part in [*own, *[0.0] * (width - len(own))]])
    text = ""
    if rows is not None:
        totals = [
            sum_of([row[column] for row in rows for column in range(start, start + width)])
            for start in range(0, len(columns) * width, width)
        ]
        text = " ".join(total.hex() for total in totals)
    return [float.fromhex(word) for word in group.share(text).split()]


def sum_of(values: Sequence[float]) -> float:
    """Return the sum, rounded once (Shewchuk 1997, doi:10.1007/PL00009321); of values that are not
    finite, what floats make of them."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)
