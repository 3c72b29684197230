"""End the daemon of a launcher on a node that has lost the launcher's, or one that is frozen.

The launcher of Open MPI starts ranks on another node through a daemon there. Where the link to that
node dies while the daemon's words are on their way, TCP sends them again and again, and the daemon
waits for some 15 minutes. A rank that ends all ranks therefore leaves a process behind, which gives
the daemon some seconds.

A daemon that is stopped (SIGSTOP) answers to nobody, and its launcher waits for ever. A thread
beside each rank kills it: the launcher then notices that it has lost its daemon.

Run as a program, `-m phalanx.jobs.stray_daemon <token> <daemon>...`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from phalanx.jobs.leftovers import (
    belongs_to,
    end_all,
    has_ended,
    is_daemon,
    is_stopped,
    kill,
    parent_of,
)
from phalanx.jobs.orphan import JOB_VARIABLE
from phalanx.jobs.state_clock import StateClock

GRACE_S = 5.0
"""Seconds for the launcher to end a job of which a rank has failed."""
FROZEN_S = 15.0
"""Seconds for which a launcher or its daemon may be stopped while their watcher is not."""
_TERMINATE_S = 1.5
"""Seconds for the daemon to remove its files."""
_POLL_EVERY_S = 0.1
_LOOK_EVERY_S = 0.5


def end_frozen_daemons() -> None:
    """Have the daemons above this rank killed once they have been stopped for `FROZEN_S`. Does
    nothing where there are none."""
    token = os.environ.get(JOB_VARIABLE)
    daemons = [] if token is None else _daemons_above(token)[0]
    if daemons:
        threading.Thread(target=_end_frozen, args=[daemons], name="daemons", daemon=True).start()


def _end_frozen(daemons: Sequence[int]) -> None:
    clock = StateClock()
    while True:
        time.sleep(_LOOK_EVERY_S)
        stopped = tuple(filter(is_stopped, daemons))
        if clock.see(stopped or None, time.monotonic()) > FROZEN_S:
            kill(stopped)


def end_stray_daemon() -> None:
    """Have the daemon ended that started this rank, unless it ends by itself within `GRACE_S`.

    Does nothing where there is none, or where its launcher is on this node: whoever started that
    one sees to both. Raises: OSError when no process can be started.
    """
    token = os.environ.get(JOB_VARIABLE)
    if token is None:
        return
    daemons, above = _daemons_above(token)
    if daemons and not belongs_to(above, token):
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, token, *map(str, daemons)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _daemons_above(token: str) -> tuple[list[int], int]:
    """Return the daemon above this process and its parents that are daemons too, and the process
    above these: Open MPI's daemon starts ranks through a fork."""
    above = os.getppid()
    while belongs_to(above, token) and not is_daemon(above):
        above = parent_of(above)
    daemons: list[int] = []
    while is_daemon(above):
        daemons.append(above)
        above = parent_of(above)
    return daemons, above


def _end(token: str, daemons: Sequence[int]) -> None:
    if _have_ended(daemons, GRACE_S):
        return
    for pid in filter(is_daemon, daemons):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)  # SIGTERM may be blocked (`shield`)
    _have_ended(daemons, _TERMINATE_S)
    kill(filter(is_daemon, daemons))
    end_all(token)


def _have_ended(daemons: Sequence[int], within_s: float) -> bool:
    """Return whether all have ended in time."""
    until = time.monotonic() + within_s
    while not all(map(has_ended, daemons)):
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_EVERY_S)
    return True


if __name__ == "__main__":
    _end(sys.argv[1], [int(word) for word in sys.argv[2:]])
