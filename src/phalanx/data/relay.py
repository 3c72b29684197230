"""A file that one rank reads and a chain of others writes down: no rank sends a byte twice.

Messages are looked for with naps between: who relays works beside training, not instead of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group

PIECE_BYTES = 4 * 2**20
NAP_S = 1e-3

COMMAND_TAG, LENGTH_TAG, PIECE_TAG = 1, 2, 3

FAILED = -1
"""In place of a length: the rank that reads has met an error."""


class _Request(Protocol):
    def test(self) -> bool: ...


def relayed(group: Group, root: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces that `root` reads, on every rank of the chain root, root + 1, …; each passes a
    piece on before it looks at it. On other ranks than `root`, `pieces` is not used.

    Cost: a rank sends each byte at most once; the last is `size` - 1 pieces behind the first.
    Raises: OSError on `root` what reading raised; on the others that it failed there.
    """
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    source = _read(pieces) if group.rank == root else _received(group, before)
    for length, piece in source:
        if after != root:
            _send(group, np.array([length]), after, LENGTH_TAG)
            if length > 0:
                _send(group, np.frombuffer(piece, np.uint8), after, PIECE_TAG)
        if isinstance(piece, OSError):
            raise piece
        if length:
            yield piece


def _read(pieces: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    """Lengths and pieces, and length 0 in the end; FAILED and the error when there is one."""
    try:
        for piece in pieces:
            yield len(piece), piece
    except OSError as error:
        yield FAILED, error
        return
    yield 0, b""


def _received(group: Group, before: int) -> Iterator[tuple[int, Any]]:
    length = np.ones(1, np.int64)
    while length[0] > 0:
        receive(group, length, before, LENGTH_TAG)
        if length[0] == FAILED:
            yield FAILED, OSError("it could not be read by another node")
            return
        piece = np.empty(int(length[0]), np.uint8)
        if len(piece):
            receive(group, piece, before, PIECE_TAG)
        yield int(length[0]), piece.data


def send_to_all(group: Group, command: NDArray[np.int64]) -> None:
    """From this rank to every other."""
    for rank in range(group.size):
        if rank != group.rank:
            _send(group, command, rank, COMMAND_TAG)


def receive(group: Group, array: NDArray[Any], source: int, tag: int) -> None:
    _rest(group.receive(Buffer.of(array), source=source, tag=tag))


def _send(group: Group, array: NDArray[Any], dest: int, tag: int) -> None:
    _rest(group.send(Buffer.of(array), dest=dest, tag=tag))


def _rest(request: _Request) -> None:
    while not request.test():
        time.sleep(NAP_S)
