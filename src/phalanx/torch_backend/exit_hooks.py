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

from phalanx.comm.abort import abort
from phalanx.comm.errors import MismatchError
from phalanx.records.last_collectives import dump_folder
from phalanx.torch_backend.session import Session
from phalanx.torch_backend.signals import defer_handlers

GRACE_S = 0.5  # time that peers have to report their state before all ranks are ended
ENDING_S = 5.0  # limit of calls still running when the program ends
PYTORCH_HOOK = "_distributed_excepthook"


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


def install_exit_hooks(session: Session) -> None:
    """Install hooks for `session`: on uncaught exceptions, exit, SIGTERM and fork."""
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
    """Refuse all calls in a forked child: MPI would crash there, or end the parent's messages."""
    for session in list(_SESSIONS):
        session.refuse(
            f"this process, {os.getpid()}, was forked from rank {session.world.rank} after "
            "init_process_group; MPI cannot be used in it. Start workers by 'spawn' or "
            "'forkserver', or fork before init_process_group"
        )


_before: Any = sys.excepthook
"""The hook before this one."""


def _report_exception(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Report an uncaught exception to the peers, then end all ranks (`sys.excepthook`)."""
    _before(kind, error, trace)
    sessions = _open_sessions()
    for session in sessions:
        session.fail(f"{kind.__name__}: {error}")
    if sessions:
        # A thread, since PyTorch's hook calls this one and prints only after it returns, and other
        # threads may keep the program from ending.
        threading.Thread(target=_abort_after, args=(2 * GRACE_S,), daemon=True).start()


def _remove_stale_hooks() -> None:
    """Remove the hooks of destroyed groups that hide this one.

    PyTorch adds a hook in every `init_process_group`, removes none, and each calls the one before.
    """
    hook: Any = sys.excepthook
    while getattr(hook, "__name__", "") == PYTORCH_HOOK:
        inside = inspect.getclosurevars(hook).nonlocals
        hook = inside.get("old_hook")
    if hook is _report_exception:
        sys.excepthook = hook


def _install_sigterm_dump() -> None:
    """Have SIGTERM dump this rank's last calls, if a dump folder is set.

    A script's own handler of SIGTERM is left in place.
    """
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
    """End all open sessions at the end of the program."""
    for session in _open_sessions():
        _end_session(session)


def _end_session(session: Session) -> None:
    if session.has_failed:
        sys.stderr.flush()
        _abort_after(GRACE_S)
    try:
        text = "" if session.end_threads(ENDING_S) else "its collective is in flight"
        if not text:
            session.exit_barrier()
    except MismatchError as error:
        text = f"its peers wait for it: {error}"
    if text:
        rank = session.world.group.labels.short(session.world.rank)
        print(f"rank {rank} ends while {text}; ending all ranks", file=sys.stderr, flush=True)
        session.fail(f"it ended while {text}")
        _abort_after(GRACE_S)
