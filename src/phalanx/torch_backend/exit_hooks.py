"""Exit hooks of a rank: report its failure to the peers, end its threads before MPI."""

from __future__ import annotations

import atexit
import inspect
import os
import signal
import sys
import threading
import time
import weakref
from functools import cache
from types import FrameType, TracebackType
from typing import Any

from phalanx.comm.errors import MismatchError
from phalanx.comm.world import abort
from phalanx.records.last import dump_folder
from phalanx.torch_backend.session import Session
from phalanx.torch_backend.signals import defer_handlers

GRACE_S = 0.5  # for the others to say what they were doing, before all are ended
ENDING_S = 5.0  # for what is still under way when the program ends
PYTORCH_HOOK = "_distributed_excepthook"


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


def install_exit_hooks(session: Session) -> None:
    """An uncaught exception, the normal end, a signal and a fork of this process concern
    `session`, and all that began before it and are still open."""
    _SESSIONS.add(session)
    _install_once()
    _remove_stale_hooks()


def _open_sessions() -> list[Session]:
    """Return the open sessions of this process, without those of a parent that forked it."""
    return [each for each in list(_SESSIONS) if each.is_open and each.pid == os.getpid()]


@cache
def _install_once() -> None:
    global _before
    _before, sys.excepthook = sys.excepthook, _report_exception
    _install_sigterm_dump()
    defer_handlers()
    atexit.register(_end)
    os.register_at_fork(after_in_child=_refuse_in_child)


def _refuse_in_child() -> None:
    """In a forked child MPI must not be touched: it would crash, or end the parent's messages."""
    for session in list(_SESSIONS):
        session.refuse(
            f"this process, {os.getpid()}, was forked from rank {session.world.rank} after "
            "init_process_group; MPI cannot be used in it. Start workers by 'spawn' or "
            "'forkserver', or fork before init_process_group"
        )


_before: Any = sys.excepthook
"""The hook that was there before this one."""


def _report_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """The hook for uncaught exceptions."""
    _before(kind, error, trace)
    sessions = _open_sessions()
    for session in sessions:
        session.fail(f"{kind.__name__}: {error}")
    if sessions:
        # Not here: PyTorch's own hook calls this one, and prints only when it has returned. The
        # thread is for programs that other threads keep from ending.
        threading.Thread(target=_abort_after, args=(2 * GRACE_S,), daemon=True).start()


def _remove_stale_hooks() -> None:
    """PyTorch adds a hook in every `init_process_group` and takes none away: without end they call
    each other. Those that hide this one are of groups that exist no more."""
    hook: Any = sys.excepthook
    while getattr(hook, "__name__", "") == PYTORCH_HOOK:
        inside = inspect.getclosurevars(hook).nonlocals
        hook = inside.get("old_hook")
    if hook is _report_exception:
        sys.excepthook = hook


def _install_sigterm_dump() -> None:
    """Where there is a folder for it, a request to end has this rank write down what it did last.
    A script that listens to the signal itself is left alone."""
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if (
        dump_folder() is not None
        and is_free
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGTERM, _dump_and_terminate)


def _dump_and_terminate(number: int, _: FrameType | None) -> None:
    for session in _open_sessions():
        session.world.recorder.write(f"rank {session.world.rank} was asked to end (SIGTERM)")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _abort_after(grace_s: float) -> None:
    time.sleep(grace_s)
    abort(1)


def _end() -> None:
    """The end of the program."""
    for session in _open_sessions():
        _end_session(session)


def _end_session(session: Session) -> None:
    if session.has_failed:
        sys.stderr.flush()
        _abort_after(GRACE_S)
    try:
        text = "" if session.end_threads(ENDING_S) else "a collective of its own is under way"
        if not text:
            session.exit_barrier()
    except MismatchError as error:
        text = f"others wait for it: {error}"
    if text:
        rank = session.world.rank
        print(f"rank {rank} ends while {text}; ending all ranks", file=sys.stderr, flush=True)
        session.fail(f"it ended while {text}")
        _abort_after(GRACE_S)
