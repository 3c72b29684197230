"""Pipelined chain broadcast of a file that one rank reads: no rank sends a byte twice.

Messages are polled with sleeps between, so that broadcasting takes little time from training.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group

CHUNK_BYTES = 4 * 2**20
POLL_S = 1e-3

COMMAND_TAG, LENGTH_TAG, CHUNK_TAG = 1, 2, 3

FAILED = -1
"""Sent in place of a length: the reading rank got an error."""


class _PendingMessage(Protocol):
    def test(self) -> bool: ...


def chain_broadcast(group: Group, root: int, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks that `root` reads, on every rank of the chain root, root + 1, …; each rank
    forwards a chunk before it yields it. `chunks` is used on `root` only.

    Cost: a rank sends each byte at most once; the last is `size` - 1 chunks behind the first.
    Raises: OSError on `root` from reading; on its peers, that reading failed there.
    """
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    source = _read_chunks(chunks) if group.rank == root else _receive_chunks(group, before)
    for length, chunk in source:
        if after != root:
            _send(group, np.array([length]), after, LENGTH_TAG)
            if length > 0:
                _send(group, np.frombuffer(chunk, np.uint8), after, CHUNK_TAG)
        if isinstance(chunk, OSError):
            raise chunk
        if length:
            yield chunk


def _read_chunks(chunks: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    """Yield (length, chunk), at the end (0, empty), after an error (FAILED, error)."""
    try:
        for chunk in chunks:
            yield len(chunk), chunk
    except OSError as error:
        yield FAILED, error
        return
    yield 0, b""


def _receive_chunks(group: Group, before: int) -> Iterator[tuple[int, Any]]:
    length = np.ones(1, np.int64)
    while length[0] > 0:
        receive(group, length, before, LENGTH_TAG)
        if length[0] == FAILED:
            yield FAILED, OSError("it could not be read by another node")
            return
        chunk = np.empty(int(length[0]), np.uint8)
        if len(chunk):
            receive(group, chunk, before, CHUNK_TAG)
        yield int(length[0]), chunk.data


def send_to_all(group: Group, command: NDArray[np.int64]) -> None:
    """Send a command from this rank to all its peers."""
    for rank in range(group.size):
        if rank != group.rank:
            _send(group, command, rank, COMMAND_TAG)


def receive(group: Group, array: NDArray[Any], source: int, tag: int) -> None:
    _wait(group.receive(Buffer.of(array), source=source, tag=tag))


def _send(group: Group, array: NDArray[Any], dest: int, tag: int) -> None:
    _wait(group.send(Buffer.of(array), dest=dest, tag=tag))


def _wait(request: _PendingMessage) -> None:
    while not request.test():
        time.sleep(POLL_S)
