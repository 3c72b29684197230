"""Sender side of an emulated link: messages are delayed until a network would have delivered them.

Receivers need no change. The delaying thread sleeps and computes nothing, so the rank computes
meanwhile, as it would with a network card.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from phalanx.comm.link import Link

CLOSING_TIMEOUT_S = 1.0
_clock = time.monotonic


class LinkEmulator:
    """The one way out of a rank, for the messages of all its groups. Any thread may send.

    A message begins to leave when the ones before it have left, takes its bytes ÷ bandwidth to
    leave, and arrives the latency after it has left: it is given to MPI then, never earlier. To
    this comes what MPI itself takes, which within a machine is little.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._guard = threading.Lock()
        self._left_at_s = 0.0
        self._held: queue.Queue[DelayedMessage | None] = queue.Queue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, communicator: Any, memory: Any, num_bytes: int, dest: int, tag: int) -> Any:
        """Send like `communicator.Isend(memory, dest, tag)`, whose request this stands for.

        The memory must not change until the request is done, which is not before the message has
        arrived.
        """
        bandwidth = self.link.bandwidth_bytes_per_s
        leaving_s = num_bytes / bandwidth if bandwidth else 0.0
        with self._guard:
            self._left_at_s = max(_clock(), self._left_at_s) + leaving_s
            arrives_at_s = self._left_at_s + self.link.latency_s
            message = DelayedMessage(communicator, memory, dest, tag, arrives_at_s)
            self._held.put(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="link", daemon=True)
                self._thread.start()
        return message

    def flush(self) -> None:
        """Return when everything that was sent has been given to MPI."""
        self._held.join()

    def close(self) -> None:
        """Send no more; what is still held back is forgotten."""
        self._closing.set()
        if self._thread is not None:
            self._held.put(None)
            self._thread.join(CLOSING_TIMEOUT_S)

    def _run(self) -> None:
        # First in, first out: the latency is the same for all, so they arrive as they were sent.
        while (message := self._held.get()) is not None:
            wait_s = message.arrives_at_s - _clock()
            if wait_s > 0:
                self._closing.wait(wait_s)
            if not self._closing.is_set():
                message.post()
            self._held.task_done()
        self._held.task_done()


class DelayedMessage:
    """A message that is held back, and then MPI's; a request such as mpi4py's."""

    __slots__ = (
        "_communicator", "_dest", "_error", "_guard", "_memory", "_request", "_tag", "arrives_at_s",
    )  # fmt: skip

    def __init__(
        self, communicator: Any, memory: Any, dest: int, tag: int, arrives_at_s: float
    ) -> None:
        """arrives_at_s: on the clock of `time.monotonic`."""
        self.arrives_at_s = arrives_at_s
        self._communicator, self._memory, self._dest, self._tag = communicator, memory, dest, tag
        self._guard = threading.Lock()
        self._request: Any = None
        self._error: Exception | None = None

    def post(self) -> None:
        """Post it to MPI."""
        with self._guard:
            try:
                self._request = self._communicator.Isend(self._memory, self._dest, self._tag)
            except Exception as error:  # noqa: BLE001  raised by whoever waits
                self._error = error

    def Test(self) -> bool:  # noqa: N802  as mpi4py has it
        """Return whether it has been sent. Raises: the error of MPI when the message was posted."""
        with self._guard:
            if self._error is not None:
                raise self._error
            return self._request is not None and bool(self._request.Test())
