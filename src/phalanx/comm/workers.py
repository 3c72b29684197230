"""Workers that a rank starts by `multiprocessing`, which must not use MPI."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from pathlib import Path

from phalanx.errors import UserError
from phalanx.jobs.variables import parent_processes

RANK_PROCESS = "PHALANX_RANK_PROCESS"
"""Variable with the process id of a rank, which its workers inherit."""


def _is_worker(rank: str) -> bool:
    """Return whether the process `rank` has started this one by `multiprocessing`."""
    if starter := multiprocessing.parent_process():
        return str(starter.pid) == rank
    # Set while the program's file is run again; `multiprocessing` itself looks at it so.
    if not getattr(multiprocessing.current_process(), "_inheriting", False):
        return False
    parent, *others = parent_processes(2)
    with contextlib.suppress(OSError):
        if b"multiprocessing.forkserver" in Path(f"/proc/{parent}/cmdline").read_bytes():
            return rank in map(str, others)
    return str(parent) == rank


def refuse_worker() -> None:
    """Remember that this process is a rank, for the workers that it starts.

    Raises: UserError in such a worker, where MPI would crash: `spawn` and `forkserver` run the
            program's file again.
    """
    if _is_worker(os.environ.get(RANK_PROCESS, "")):
        raise UserError(
            "this process is a worker that a rank started, and it runs the program's file again: "
            'put the training code under `if __name__ == "__main__":`'
        )
    os.environ[RANK_PROCESS] = str(os.getpid())
