"""All-reduce in shared memory: every rank sums its own share of the vector, for all.

The vector is cut into one share a rank. A rank hands the others what belongs to their shares, by
copying it into memory that they can read; what belongs to its own share it need not copy at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.layout import Piece, pieces_of, share_of
from phalanx.comm.window import Window

CHUNK_BYTES = 128 * 1024  # of one rank's piece; the pieces and their sum stay in a core's cache


class SharedAllReduce:
    """Sums vectors of one layout over the ranks of a node. Making one is collective.

    Cost, for p ranks of n bytes: two barriers, and n(p-1)/p bytes copied, n read and n/p written
    by each rank.
    """

    def __init__(self, window: Window, total: NDArray[Any], sizes: Sequence[int]) -> None:
        """window: an array of n elements for each rank; total: (n,) in shared memory, for the
        result; sizes: elements of the consecutive parts that make up the vector."""
        self._window, self.total = window, total
        shares = [share_of(rank, window.size, sum(sizes)) for rank in range(window.size)]
        largest = max(1, CHUNK_BYTES // total.itemsize)
        self._own = pieces_of(sizes, shares[window.rank], largest)
        self._others = [
            piece
            for rank, share in enumerate(shares)
            if rank != window.rank
            for piece in pieces_of(sizes, share, largest=max(1, sum(sizes)))
        ]

    def __call__(self, parts: Sequence[NDArray[Any]]) -> None:
        """Put into `total` the sum over all ranks of the vector that `parts` make up.

        parts: 1-D arrays of the sizes given; not changed. Sums are made in the order of the ranks,
        so `total` has the same bits run after run, whoever comes first.
        Raises: WaitTimeoutError naming the ranks that did not come.
        """
        mine = self._window.arrays[self._window.rank]
        for piece in self._others:
            mine[piece.offset : piece.stop] = parts[piece.part][piece.begin : piece.end]
        self._window.barrier("all-reduce (waiting for the gradients)")
        for piece in self._own:
            self._sum(piece, parts[piece.part][piece.begin : piece.end])
        self._window.barrier("all-reduce (waiting for the sums)")

    def _sum(self, piece: Piece, own: NDArray[Any]) -> None:
        where = slice(piece.offset, piece.stop)
        terms = [array[where] for array in self._window.arrays]
        terms[self._window.rank] = own
        sum_in_order(terms, self.total[where])


def sum_in_order(terms: Sequence[NDArray[Any]], total: NDArray[Any]) -> None:
    """total = terms[0] + terms[1] + …, added up from the first to the last."""
    np.add(terms[0], terms[1], out=total)
    for term in terms[2:]:
        np.add(total, term, out=total)
