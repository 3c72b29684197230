"""Run a command that SIGTERM does not end: `shield.py <word>...`.

A batch system that ends a job sends SIGTERM to all its processes. The launcher of Open MPI and its
daemons kill their ranks 0.2 seconds after theirs, in which no checkpoint is saved. Needs the
standard library alone.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    # Inherited by the command, which ends its ranks on SIGINT as well, and not by the ranks.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.execvp(sys.argv[1], sys.argv[1:])
