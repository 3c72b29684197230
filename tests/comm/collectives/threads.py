"""Ranks that are threads of this process, for algorithms on messages."""

import queue
import threading
from collections.abc import Callable

import numpy as np

from phalanx.comm.transport import Messages, Transport

Lines = dict[tuple[int, int], "queue.Queue[bytes]"]


class ThreadTransport:
    """One rank; `sent` and `received` hold the bytes of each of its messages."""

    def __init__(self, rank: int, size: int, lines: Lines) -> None:
        self.rank, self.size, self._lines = rank, size, lines
        self.sent: list[int] = []
        self.received: list[int] = []

    def exchange(self, sends: Messages, receives: Messages) -> None:
        for buffer, dest in sends:
            assert dest != self.rank, "a rank needs no messages to itself"
            self._lines[self.rank, dest].put(buffer.bytes().tobytes())
            self.sent.append(buffer.num_bytes)
        for buffer, source in receives:
            message = self._lines[source, self.rank].get(timeout=10)
            buffer.bytes()[:] = np.frombuffer(message, np.uint8)
            self.received.append(buffer.num_bytes)


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
