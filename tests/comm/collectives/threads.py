"""Ranks that are threads of this process, for algorithms on messages."""

import queue
import threading
from collections.abc import Callable

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType
from phalanx.comm.transport import Messages, Transport

Lines = dict[tuple[int, int], "queue.Queue[bytes]"]


class ThreadTransport(Transport):
    """One rank; `sent` and `received` hold the bytes of each of its messages."""

    def __init__(self, rank: int, size: int, lines: Lines) -> None:
        self.rank, self.size, self._lines = rank, size, lines
        self.sent: list[int] = []
        self.received: list[int] = []

    def start(self, sends: Messages, receives: Messages) -> "ThreadExchange":
        for buffer, dest in sends:
            assert dest != self.rank, "a rank needs no messages to itself"
            self._lines[self.rank, dest].put(buffer.bytes().tobytes())
            self.sent.append(buffer.num_bytes)
        return ThreadExchange(self, receives)

    def scratch(self, count: int, dtype: DType) -> Buffer:
        memory = np.full(count * dtype.itemsize, 0xAB, np.uint8)
        return Buffer(memory.ctypes.data, count, dtype, memory)

    def receive(self, buffer: Buffer, source: int) -> None:
        message = self._lines[source, self.rank].get(timeout=10)
        buffer.bytes()[:] = np.frombuffer(message, np.uint8)
        self.received.append(buffer.num_bytes)


class ThreadExchange:
    def __init__(self, transport: ThreadTransport, receives: Messages) -> None:
        self._transport, self._receives = transport, receives

    def finish(self) -> None:
        for buffer, source in self._receives:
            self._transport.receive(buffer, source)


def run(size: int, program: Callable[[Transport], None]) -> list[ThreadTransport]:
    """Run `program` on `size` ranks; all that was sent must have been received."""
    lines: Lines = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    transports = [ThreadTransport(rank, size, lines) for rank in range(size)]
    errors: list[BaseException] = []

    def main(transport: ThreadTransport) -> None:
        try:
            program(transport)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=main, args=(transport,)) for transport in transports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert all(line.empty() for line in lines.values()), "a message was not received"
    return transports
