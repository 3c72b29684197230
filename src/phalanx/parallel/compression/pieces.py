"""Division of a vector into shards, one per rank, and of each shard into chunks that are sent one
after the other. Pure."""

from __future__ import annotations

from typing import Protocol

from phalanx.comm.layout import share_of, starts_of

PIECE_BYTES = 256 * 1024
"""A coded piece has at least as many: it takes 2 ms over 1 Gbit/s, 0.2 ms over 10 Gbit/s, several
times what a message costs by itself."""

MOST_PIECES = 8
"""What cannot be hidden is the coding of the first piece and of the last: an eighth each."""

_CUT_AT = 64
"""Pieces begin at multiples of so many values, where every coding begins a word."""


class Sizes(Protocol):
    """Message sizes of a codec."""

    @property
    def unit(self) -> int: ...

    def num_bytes(self, count: int) -> int: ...


class Cut:
    """Shards of a vector, one owned by each rank, and their separately encoded chunks.

    The number of chunks depends on count, ranks and codec alone, so that the bits of a sum do not
    depend on the transport.
    """

    def __init__(self, count: int, num_ranks: int, coding: Sizes) -> None:
        self.shares = shares_of(count, num_ranks, coding.unit)
        largest = max(len(share) for share in self.shares)
        self.num_pieces = min(MOST_PIECES, max(1, coding.num_bytes(largest) // PIECE_BYTES))
        unit = max(_CUT_AT, coding.unit)
        self.pieces = [
            [
                range(share.start + piece.start, share.start + piece.stop)
                for piece in shares_of(len(share), self.num_pieces, unit)
            ]
            for share in self.shares
        ]
        """[rank][number]."""
        self.starts = [
            starts_of([coding.num_bytes(len(piece)) for piece in pieces]) for pieces in self.pieces
        ]
        """[rank][number]: where a piece begins in the coded share; its bytes at the end."""
        self.num_bytes = [starts[-1] for starts in self.starts]
        """[rank]: of the coded share."""


def shares_of(count: int, size: int, unit: int) -> list[range]:
    """Divide [0, count) at multiples of `unit` into `size` shards."""
    units = -(-count // unit)
    shares = (share_of(rank, size, units) for rank in range(size))
    return [range(min(s.start * unit, count), min(s.stop * unit, count)) for s in shares]
