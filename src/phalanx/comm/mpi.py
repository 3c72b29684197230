"""Where ranks get MPI from: mpi4py, or what stands in for it where no MPI launcher started them."""

from __future__ import annotations

import os
import sys
from typing import Any

from phalanx.launch.srun import prepare_tasks
from phalanx.launch.transport import choose_transport

_stand_in: Any = None
"""One for the process, as MPI itself is: whatever talks to other ranks must find the same."""


def mpi() -> Any:
    """Return the module mpi4py.MPI, or the object that stands in for it.

    Raises: UserError when `srun` has started this process in a way in which MPI would abort.
    """
    if _stand_in is not None:
        return _stand_in
    if "mpi4py.MPI" not in sys.modules:
        prepare_tasks(os.environ)
        choose_transport(os.environ)
    from mpi4py import MPI

    return MPI


def install_stand_in(stand_in: Any | None) -> None:
    """Let `mpi()` return `stand_in` from now on; None: mpi4py again."""
    global _stand_in
    _stand_in = stand_in


def is_stand_in() -> bool:
    return _stand_in is not None
