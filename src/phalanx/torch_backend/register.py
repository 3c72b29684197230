"""Registration of backend "mpi", run by `import torch` (entry point `torch.backends`).

Kept small, since every program that imports PyTorch pays for it. All else is imported by the first
`init_process_group("mpi")`.

A program that does not use backend mpi runs as without Phalanx, with two differences in ranks of an
MPI launcher: `is_mpi_available()` is True, and the variables of `jobs/variables.py` are set.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import warnings
from typing import Any

from phalanx.errors import UserError
from phalanx.jobs.detect import detect_mpi
from phalanx.jobs.variables import MARKER_VARIABLE, set_variables
from phalanx.torch_backend import torch_patches


def register() -> None:
    """Register backend "mpi"; never raises, as that would break every `import torch`.

    Where PyTorch lacks something that this needs, PyTorch is left unchanged.
    """
    with contextlib.suppress(Exception):
        try:
            launched = detect_mpi(os.environ)
        except UserError:  # raised again when backend mpi is used
            launched = None
        try:
            _register(sys.modules["torch"], is_rank=launched is not None)
        except Exception as error:  # noqa: BLE001
            # Printed on rank 0, once: children of a rank inherit the marker.
            if launched is not None and launched.rank == 0 and MARKER_VARIABLE not in os.environ:
                os.environ[MARKER_VARIABLE] = ""
                print(f"phalanx: backend mpi is not available: {error!r}", file=sys.stderr)


def _register(torch: Any, *, is_rank: bool) -> None:
    if not torch.distributed.is_available():
        return
    c10d: Any = importlib.import_module(torch_patches.C10D)
    if c10d.is_mpi_available():
        return  # PyTorch was built with MPI: keep its own backend
    from torch.distributed.rendezvous import register_rendezvous_handler

    torch_patches.GROUP_HELPER.original()  # raises before anything has been changed
    if torch_patches.version() >= (2, 14):
        c10d.Backend.register_backend("mpi", _create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler("mpi", _rendezvous)
    if is_rank:
        set_variables(os.environ)
        # Untrue here: ranks that contradict MPI's are refused. Accelerate and Lightning give them.
        warnings.filterwarnings("ignore", "For MPI backend, world_size", UserWarning)
    torch_patches.patch_at_import(is_rank=is_rank and _can_load_mpi())


def _can_load_mpi() -> bool:
    """Return whether mpi4py finds a library of MPI, which stays uninitialised."""
    try:
        return importlib.util.find_spec("mpi4py.MPI") is not None
    except Exception:  # noqa: BLE001  RuntimeError of mpi4py, or whatever a loader raises
        return False


def _create(options: Any, _: Any = None) -> Any:
    return torch_patches.ProcessGroupMPIFactory.create(list(options.global_ranks_in_group))


def _rendezvous(url: str, *_: Any, **__: Any) -> Any:
    """init_method="mpi://": ranks and store from MPI, for other backends too."""
    from phalanx.torch_backend.group_creation import rendezvous

    return rendezvous(url)
