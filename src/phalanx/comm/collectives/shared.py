"""All-reduce in shared memory: every rank sums its own slice of all parts, then publishes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.window import Window

CHUNK_BYTES = 128 * 1024  # of one part; p chunks and their sum stay in a core's own cache


def slice_of(start: int, stop: int, rank: int, size: int) -> tuple[int, int]:
    """The part [begin, end) of [start, stop) that `rank` reduces; parts differ by at most one."""
    length = stop - start
    return start + length * rank // size, start + length * (rank + 1) // size


def shared_all_reduce(window: Window, start: int, stop: int) -> None:
    """Sum elements [start, stop) over the parts of `window`, in place, in the order of the ranks:
    every rank ends with the same bytes, run after run.

    Cost: two barriers and 2pn bytes of memory traffic for p ranks of n bytes, which is the least
    that is possible when every rank's own part is to hold the result.
    """
    window.barrier("all-reduce (waiting for the gradients)")
    begin, end = slice_of(start, stop, window.rank, window.size)
    step = max(1, CHUNK_BYTES // window.mine.itemsize)
    for at in range(begin, end, step):
        sum_into_all([part[at : min(at + step, end)] for part in window.parts])
    window.barrier("all-reduce (waiting for the sums)")


def sum_into_all(parts: list[NDArray[Any]]) -> None:
    """Replace each of `parts` by the sum of all, added up in their order."""
    total, *others = parts
    for part in others:
        np.add(total, part, out=total)
    for part in others:
        part[...] = total
