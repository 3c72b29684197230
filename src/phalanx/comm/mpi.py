"""Source of MPI for the ranks: mpi4py, or its stand-in if no MPI launcher started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import util
from typing import Any

from phalanx.jobs import leftovers
from phalanx.jobs.detect import detect
from phalanx.jobs.mpi_variables import prepare_mpi

_stand_in: Any = None
"""One for the process, as MPI itself is: whatever talks to other ranks must find the same."""


def mpi() -> Any:
    """Return the module mpi4py.MPI, or the object that stands in for it.

    Raises: UserError when `srun` has started this process in a way in which MPI would abort.
    """
    if _stand_in is not None:
        return _stand_in
    is_first = "mpi4py.MPI" not in sys.modules
    if is_first:
        prepare_mpi(os.environ)
    from mpi4py import MPI

    if is_first and detect(os.environ) is None and _is_alone(MPI) is not False:
        is_alone = partial(_is_alone, MPI, known=_is_alone(MPI))
        # Not atexit: a process that multiprocessing has started does not call its functions.
        util.Finalize(None, _remove_segment, args=(os.getpid(), is_alone), exitpriority=0)
    return MPI


def _is_alone(module: Any, known: bool | None = None) -> bool | None:
    """Return whether MPI is of this process alone; `known` before it begins and after its end."""
    if not module.Is_initialized() or module.Is_finalized():
        return known
    return bool(module.COMM_WORLD.Get_size() == 1)


def _remove_segment(pid: int, is_alone: Callable[[], bool | None]) -> None:
    """Remove this process's segment of shared memory: Open MPI 5.0.11 leaves that of a process that
    no launcher started, 16 MB. Those of peers, which a launcher that is not known here may have
    started, stay."""
    if os.getpid() == pid and is_alone():
        leftovers.remove(leftovers.leftovers_of([pid], []))


def install_stand_in(stand_in: Any | None) -> None:
    """Let `mpi()` return `stand_in` from now on; None: mpi4py again."""
    global _stand_in
    _stand_in = stand_in


def is_stand_in() -> bool:
    return _stand_in is not None
