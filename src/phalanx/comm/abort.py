"""Ends of a process that uses MPI: with all other ranks after a failure, else by itself."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from phalanx.jobs.rank_log import note_abort


def abort(exit_code: int) -> NoReturn:
    """End all ranks at once: the way out when one has failed, which the others, waiting for it in
    a collective, would never learn. Only this process when MPI is not in use, or knows no other."""
    note_abort(exit_code)
    library = sys.modules.get("mpi4py.MPI")
    is_in_use = library and library.Is_initialized() and not library.Is_finalized()
    if library and is_in_use and library.COMM_WORLD.Get_size() > 1:
        library.COMM_WORLD.Abort(exit_code)
    os._exit(exit_code)


_OUTERMOST = ("<module>", "_run_module_as_main")
"""Functions at the bottom of a program's stack."""


def finalize(mpi: Any) -> None:
    """Finalise MPI in a process where nobody else does."""
    if not mpi.Is_finalized():
        mpi.Finalize()


def abort_after_failure(mpi: Any) -> None:
    """End all ranks after an uncaught exception: MPI, were it finalised now, would wait for ranks
    that wait for this one."""
    trace = getattr(getattr(sys, "last_value", None), "__traceback__", None)
    # Uncaught, and no error that a test runner keeps for its debugger.
    has_failed = trace is not None and trace.tb_frame.f_code.co_name in _OUTERMOST
    if not has_failed or hasattr(sys, "ps1") or mpi.Is_finalized():
        return
    if mpi.COMM_WORLD.Get_size() > 1:
        sys.stdout.flush()
        abort(1)
