"""Progress of MPI's messages while a rank waits for something else than MPI.

A message counts as sent once MPI has taken it, and MPI moves it only while it is called: MPICH over
libfabric keeps what it has taken until then. A rank that waits elsewhere for a peer which waits for
that message waits for ever.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from phalanx.comm.faults import is_fault_tolerant, move_messages

_INTERVAL_S = 1e-3
_answers: list[Callable[[], None]] = []
"""Functions that answer peers who ask what this process waits in."""


def poke_mpi() -> None:
    """Let MPI move messages, where this process uses it."""
    library = sys.modules.get("mpi4py.MPI")
    if library is not None and library.Is_initialized() and not library.Is_finalized():
        if is_fault_tolerant():
            move_messages()
            return
        library.COMM_WORLD.Iprobe()  # MPICH moves nothing else on for COMM_SELF
        for answer in _answers[:]:
            answer()


def call_in_waits(answer: Callable[[], None]) -> None:
    """Call `answer` every millisecond or so in waits elsewhere, from now on."""
    _answers.append(answer)


def call_no_more(answer: Callable[[], None]) -> None:
    """Forget `answer`; no error if it was not called."""
    _answers[:] = [other for other in _answers if other != answer]


@contextmanager
def messages_moving() -> Iterator[None]:
    """Have a thread move messages, every millisecond, while the body waits outside of MPI."""
    is_over = threading.Event()

    def move() -> None:
        while not is_over.wait(_INTERVAL_S):
            poke_mpi()

    thread = threading.Thread(target=move, name="phalanx-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
