"""Reduction of gradients in shared memory, with array operations.

The flat vector of all gradients is cut into one share per rank. A rank copies what belongs to the
shares of its peers into memory that they can read; its own share needs no copy.
`csrc/grad_buffer.c` does the same and is tested against this, which serves where it was not built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.layout import flat_slices, share_of
from phalanx.comm.window import Window

CHUNK_BYTES = 128 * 1024  # of one rank's piece; the pieces and their sum stay in a core's cache

Array = NDArray[Any]


class SharedGradBuffer:
    """Gradients of one rank, as parts of a flat vector. Collective to make.

    Cost of a round, for p ranks of n bytes: two barriers, and n(p-1)/p bytes copied and n read by
    each rank.
    """

    def __init__(
        self, window: Window, sizes: Sequence[int], starts: Sequence[int] | None = None
    ) -> None:
        """window: an array as long as the vector for each rank; sizes: elements of the parts;
        starts: where they start in the vector, None when they are consecutive."""
        self._window = window
        num_elements = len(window.arrays[0])
        shares = [share_of(r, window.size, num_elements) for r in range(window.size)]
        largest = max(1, CHUNK_BYTES // window.arrays[0].itemsize)
        self._own = flat_slices(sizes, shares[window.rank], largest, starts)
        self._others = [
            piece
            for rank, share in enumerate(shares)
            if rank != window.rank
            for piece in flat_slices(sizes, share, max(1, num_elements), starts)
        ]
        self._given: dict[int, Array] = {}

    def mark_ready(self, part: int, values: Array) -> None:
        """Submit one gradient. values: (sizes[part],), unchanged until `reduce` returns."""
        self._given[part] = values
        mine = self._window.arrays[self._window.rank]
        for piece in self._others:
            if piece.part == part:
                mine[piece.offset : piece.stop] = values[piece.begin : piece.end]

    def reduce(self, use: Callable[[slice, list[Array]], None], name: str) -> float:
        """Call `use(where, terms)` for every slice of the local share, once all parts of all ranks
        are ready: where it lies in the vector, and its term of each rank, in rank order. Then wait
        until all ranks are done. name: for timeouts.

        Returns: seconds that the own share took.
        Raises:  WaitTimeoutError naming the ranks that did not come.
        """
        self._window.barrier(f"{name} (waiting for the gradients)")
        began = time.perf_counter()
        for piece in self._own:
            where = slice(piece.offset, piece.stop)
            terms = [array[where] for array in self._window.arrays]
            terms[self._window.rank] = self._given[piece.part][piece.begin : piece.end]
            use(where, terms)
        used_s = time.perf_counter() - began
        self._given.clear()
        self._window.barrier(f"{name} (waiting for the sums)")
        return used_s


def sum_in_order(terms: Sequence[Array], total: Array) -> None:
    """total = terms[0] + terms[1] + …, added up from the first to the last."""
    if len(terms) == 1:
        total[:] = terms[0]
        return
    np.add(terms[0], terms[1], out=total)
    for term in terms[2:]:
        np.add(total, term, out=total)
