"""End a process when its parent dies, in any way; a no-op outside Linux.

Run as a program, `orphan.py <signal> <parent> <word>...` sets this up and executes the command. It
runs without site-packages, so it imports the standard library only.
"""

from __future__ import annotations

import os
import signal
import sys

JOB_VARIABLE = "PHALANX_JOB"

_PR_SET_PDEATHSIG = 1
_EXIT_NOT_FOUND = 127


def end_with_parent(with_signal: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Receive `with_signal` when the parent dies; a rank's parent is its launcher.

    parent: its process id if known, to detect a parent that died before this call. The kernel
    clears the setting when a set-user-id program is executed.
    """
    if sys.platform != "linux":
        return
    was_orphaned = _is_orphan() if parent is None else False
    expected = os.getppid() if parent is None else parent
    _set_parent_death_signal(with_signal)
    if was_orphaned or os.getppid() != expected:
        os.kill(os.getpid(), with_signal)


def _is_orphan() -> bool:
    """Return whether the launcher of this rank has died: its parent is then process 1."""
    started_by_job = os.environ.get(JOB_VARIABLE)
    return started_by_job is not None and os.getppid() == 1 and not started_by_job.startswith("1.")


def _set_parent_death_signal(with_signal: int) -> None:
    import ctypes  # costs milliseconds, and not every platform needs it

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, with_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def _become(words: list[str]) -> None:
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"phalanx: cannot start {words[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_EXIT_NOT_FOUND)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    _become(sys.argv[3:])
