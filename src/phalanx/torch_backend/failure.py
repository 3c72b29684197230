"""How a rank ends: its failure is told to the others, and its threads end before MPI does."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import weakref
from types import FrameType, TracebackType

from phalanx.comm.errors import MismatchError
from phalanx.comm.world import abort
from phalanx.records.last import dump_folder
from phalanx.torch_backend.session import Session

GRACE_S = 0.5  # for the others to say what they were doing, before all are ended
ENDING_S = 5.0  # for what is still under way when the program ends


def watch_over(session: Session) -> None:
    """An uncaught exception, the normal end and a fork of this process concern `session`."""
    _chain_excepthook(session)
    _write_when_ended(session)
    atexit.register(_end, weakref.ref(session))
    os.register_at_fork(after_in_child=_Forked(session))


class _Forked:
    """In a forked child MPI must not be touched: it would crash, or end the parent's messages."""

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)

    def __call__(self) -> None:
        session = self._session()
        if session is not None:
            session.refuse(
                f"this process, {os.getpid()}, was forked from rank {session.world.rank} after "
                "init_process_group; MPI cannot be used in it. Start workers by 'spawn' or "
                "'forkserver', or fork before init_process_group"
            )


def _chain_excepthook(session: Session) -> None:
    before = sys.excepthook
    reference = weakref.ref(session)

    def tell_the_others(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        before(kind, error, trace)
        session = reference()
        if session is None or not session.is_open or session.pid != os.getpid():
            return
        session.fail(f"{kind.__name__}: {error}")
        # Not here: PyTorch's own hook calls this one, and prints only when it has returned. The
        # thread is for programs that other threads keep from ending.
        threading.Thread(target=_abort_after, args=(2 * GRACE_S,), daemon=True).start()

    sys.excepthook = tell_the_others


def _write_when_ended(session: Session) -> None:
    """Where there is a folder for it, a request to end has this rank write down what it did last.
    A script that listens to the signal itself is left alone."""
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if (
        dump_folder() is None
        or not is_free
        or threading.current_thread() is not threading.main_thread()
    ):
        return
    reference = weakref.ref(session)

    def write_and_end(number: int, _: FrameType | None) -> None:
        session = reference()
        if session is not None and session.pid == os.getpid():
            session.world.recorder.write(f"rank {session.world.rank} was asked to end (SIGTERM)")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, write_and_end)


def _abort_after(grace_s: float) -> None:
    time.sleep(grace_s)
    abort(1)


def _end(reference: weakref.ref[Session]) -> None:
    session = reference()
    if session is None or not session.is_open or session.pid != os.getpid():
        return
    if session.has_failed:
        sys.stderr.flush()
        _abort_after(GRACE_S)
    try:
        text = "" if session.end_threads(ENDING_S) else "a collective of its own is under way"
        if not text:
            session.meet()
    except MismatchError as error:
        text = f"others wait for it: {error}"
    if text:
        rank = session.world.rank
        print(f"rank {rank} ends while {text}; ending all ranks", file=sys.stderr, flush=True)
        session.fail(f"it ended while {text}")
        _abort_after(GRACE_S)
