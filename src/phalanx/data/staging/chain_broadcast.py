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

COMMAND_TAG, CHUNK_TAG = 1, 2


class _PendingMessage(Protocol):
    def test(self) -> bool: ...


def chain_broadcast(
    group: Group, root: int, chunks: Iterable[bytes], num_bytes: int
) -> Iterator[memoryview]:
    """Yield `num_bytes` that `root` reads, on every rank of the chain root, root + 1, …; each rank
    forwards a chunk before it yields it.

    chunks: of `CHUNK_BYTES`, the last one of what is left; used on `root` only.
    Cost: a rank sends each byte at most once; the last is `size` - 1 chunks behind the first.
    Raises: OSError on `root` from reading, at the end: its peers get zeros for what is missing.
    """
    before, after = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    source, fault = iter(chunks), None
    for start in range(0, num_bytes, CHUNK_BYTES):
        chunk = np.zeros(min(CHUNK_BYTES, num_bytes - start), np.uint8)
        if group.rank != root:
            receive(group, chunk, before, CHUNK_TAG)
        elif fault is None:
            try:
                content = np.frombuffer(next(source, b""), np.uint8)[: len(chunk)]
                chunk[: len(content)] = content
            except OSError as error:
                fault = error
        if after != root:
            _send(group, chunk, after, CHUNK_TAG)
        yield chunk.data
    if fault is not None:
        raise fault


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
