"""Registration of backend "mpi", run by `import torch` (entry point `torch.backends`).

Kept small, since every program that imports PyTorch pays for it. All else is imported by the first
`init_process_group("mpi")`.

A program that does not use backend mpi runs as without Phalanx, with two differences in ranks of an
MPI launcher: `is_mpi_available()` is True, and the variables of `launch/variables.py` are set.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from phalanx.errors import UserError
from phalanx.launch.detect import detect_mpi
from phalanx.launch.variables import MARKER_VARIABLE, set_variables


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
            # On rank 0, once: children of a rank inherit the marker.
            if launched is not None and launched.rank == 0 and MARKER_VARIABLE not in os.environ:
                os.environ[MARKER_VARIABLE] = ""
                print(f"phalanx: backend mpi is not available: {error!r}", file=sys.stderr)


def _register(torch: Any, *, is_rank: bool) -> None:
    if not torch.distributed.is_available():
        return
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    if c10d.is_mpi_available():
        return  # PyTorch was built with MPI: keep its own backend
    from torch.distributed.rendezvous import register_rendezvous_handler

    helper = _wrapped(c10d._new_process_group_helper, c10d)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    # From here on nothing is expected to fail.
    if version >= (2, 14):
        c10d.Backend.register_backend("mpi", _create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler("mpi", _rendezvous)
    # From 2.15 on PyTorch hooks its flight recorder to every group that does not record itself, and
    # cannot do so with one that is written in Python.
    recording: set[str] = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add("mpi")
    c10d.ProcessGroupMPI = ProcessGroupMPIFactory  # PyTorch up to 2.13 creates groups by it
    c10d._new_process_group_helper = helper
    if is_rank:
        set_variables(os.environ)
        c10d._MPI_AVAILABLE = _can_load_mpi()  # programs choose their backend by it


def _can_load_mpi() -> bool:
    """Return whether mpi4py finds a library of MPI, which stays uninitialised."""
    try:
        return importlib.util.find_spec("mpi4py.MPI") is not None
    except Exception:  # noqa: BLE001  RuntimeError of mpi4py, or whatever a loader raises
        return False


class ProcessGroupMPIFactory:
    """Stands in for `c10d.ProcessGroupMPI`, which only a PyTorch built with MPI has."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        """Create the process group of `ranks`, which hold this rank; an empty list: all ranks."""
        from phalanx.torch_backend.group_creation import create

        return create(ranks)


def _create(options: Any, _: Any = None) -> Any:
    return ProcessGroupMPIFactory.create(list(options.global_ranks_in_group))


def names_mpi(backend: object) -> bool:
    """Return whether a backend string such as "mpi" or "cpu:gloo,cuda:mpi" has backend mpi."""
    return "mpi" in {part.rpartition(":")[2] for part in str(backend).lower().split(",")}


def _wrapped(helper: Callable[..., Any], c10d: Any) -> Callable[..., Any]:
    """Return PyTorch's group-making function, patched for backend mpi.

    It passes name, timeout and store on, and sets PyTorch's MPI flag during the call.
    """

    def new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        backend = kwargs["backend"] if "backend" in kwargs else args[3]
        if not names_mpi(backend):
            joining = sys.modules.get("phalanx.torch_backend.group_creation")
            if joining is not None:  # beside a group of backend mpi
                joining.open_default_store()
            return helper(*args, **kwargs)
        from phalanx.torch_backend.group_creation import make_group

        before, c10d._MPI_AVAILABLE = c10d._MPI_AVAILABLE, True
        try:
            return make_group(helper, *args, **kwargs)
        finally:
            c10d._MPI_AVAILABLE = before

    return new_process_group_helper


def _rendezvous(url: str, *_: Any, **__: Any) -> Any:
    """init_method="mpi://": ranks and store from MPI, for other backends too."""
    from phalanx.torch_backend.group_creation import rendezvous

    return rendezvous(url)
