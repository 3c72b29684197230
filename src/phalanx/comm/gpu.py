"""Detect whether the MPI library accepts pointers to GPU memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from phalanx.comm.mpi import is_stand_in

VARIABLE = "PHALANX_GPU_AWARE"


def is_gpu_aware(environ: Mapping[str, str], library: str, reported: bool | None) -> bool | None:
    """Return whether GPU memory may be passed to MPI; None if unknown, which means no.

    library: the version text of the MPI library. reported: the library's own
    answer (`query_gpu_support`).
    Cray MPICH and Intel MPI are built for GPUs and take them only where a variable says so.
    Raises: ValueError when PHALANX_GPU_AWARE is neither 0 nor 1.
    """
    asked = environ.get(VARIABLE) or None
    if asked not in (None, "0", "1"):
        raise ValueError(f"{VARIABLE} is {asked!r}; it must be 0 or 1")
    if asked is not None and not is_stand_in():
        return asked == "1"
    if "CRAY MPICH" in library.upper():
        return environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1"
    if "Intel(R) MPI" in library:
        return environ.get("I_MPI_OFFLOAD", "0") not in ("", "0")
    return reported


def query_gpu_support(mpi: Any) -> bool | None:
    """Query the MPI library itself for GPU support; None if it does not report it.

    mpi: the module mpi4py.MPI.
    """
    if is_stand_in():
        return False
    info = mpi.COMM_WORLD.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds")  # MPI 4.1
    info.Free()
    if kinds is not None and ("cuda" in kinds or "rocm" in kinds):
        return True
    # Extensions that mpi4py does not pass on: the first of all three MPIs, the others of some.
    library = ctypes.CDLL(mpi.__file__)
    names = [f"MPIX_Query_{kind}_support" for kind in ("cuda", "rocm", "hip")]
    answers = [bool(getattr(library, name)()) for name in names if hasattr(library, name)]
    return any(answers) if answers else None
