"""Parts of few bytes side by side, to travel together through ranks that do not know their counts.

A cell is eight bytes that say how long a part is, and the part itself unless it is long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import UINT8
from phalanx.comm.errors import MismatchError
from phalanx.comm.transport import Transport

ALL_CELLS_BYTES = 256 * 1024
"""Memory for a cell per rank, where nobody knows how long the parts are."""
HEADER_BYTES = 8


class Cells:
    """Cells for parts of up to `longest` bytes, in scratch memory of the host."""

    def __init__(self, transport: Transport, num_cells: int, longest: int) -> None:
        self._rank, self.longest = transport.rank, longest
        self._stride = HEADER_BYTES * (1 + -(-longest // HEADER_BYTES))
        self.memory = transport.scratch(num_cells * self._stride, UINT8)
        self.rows = self.memory.bytes().reshape(num_cells, self._stride)
        """(num_cells, n) view of `memory`: the same n on every rank."""
        self._lengths = self.rows.view(np.int64)[:, 0]

    @classmethod
    def of_unknown(cls, transport: Transport, num_cells: int) -> Cells:
        """Make cells as long as the number of ranks allows."""
        return cls(transport, num_cells, max(16, ALL_CELLS_BYTES // transport.size - HEADER_BYTES))

    def is_long(self, part: Buffer) -> bool:
        """Return whether a part does not fit into a cell; its two ends know that."""
        return part.num_bytes > self.longest

    def long(self, parts: Sequence[Buffer], own: int) -> list[tuple[Buffer, int]]:
        """Return the long parts of peers with their numbers. own: this rank."""
        return [(part, n) for n, part in enumerate(parts) if n != own and self.is_long(part)]

    def put(self, number: int, part: Buffer) -> None:
        self._lengths[number] = part.num_bytes
        if part.count and not self.is_long(part):
            ctypes.memmove(self._data_of(number), part.address, part.num_bytes)

    def take(self, number: int, output: Buffer, source: int) -> None:
        """Copy a part of `source` to `output`, unless it is long. Raises: as `part`."""
        part = self.part(number, output, source)
        if part.count and not self.is_long(part):
            ctypes.memmove(output.address, part.address, part.num_bytes)

    def part(self, number: int, output: Buffer, source: int) -> Buffer:
        """Return a part of rank `source`, for `output`.

        Raises: MismatchError when it has another length.
        """
        if (length := int(self._lengths[number])) != output.num_bytes:
            raise MismatchError(
                f"rank {self._rank} expected {output.num_bytes} bytes from rank {source} and got "
                f"{length}: ranks differ in count or dtype"
            )
        return Buffer(self._data_of(number), output.count, output.dtype, self.memory.owner)

    def _data_of(self, number: int) -> int:
        return self.memory.address + number * self._stride + HEADER_BYTES
