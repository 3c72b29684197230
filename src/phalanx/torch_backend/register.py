"""What `import torch` runs, by the entry point `torch.backends`: makes "mpi" a known backend.

Kept tiny: it costs every program that imports PyTorch. Everything else is imported by the first
`init_process_group("mpi")`.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def register() -> None:
    """Never raises: an exception here would break `import torch` for everybody."""
    try:
        _register(sys.modules["torch"])
    except Exception as error:  # noqa: BLE001
        print(f"phalanx: backend mpi is not available: {error!r}", file=sys.stderr)


def _register(torch: Any) -> None:
    if not torch.distributed.is_available():
        return
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")

    if c10d.is_mpi_available():
        return  # PyTorch was built with MPI: its own is what the user wants
    c10d._MPI_AVAILABLE = True
    c10d.ProcessGroupMPI = ProcessGroupMPI  # what PyTorch up to 2.13 asks for a group
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version >= (2, 14):
        c10d.Backend.register_backend("mpi", _create, extended_api=True, devices=["cpu", "cuda"])
    # From 2.15 on PyTorch hooks its flight recorder to every group that does not record itself, and
    # cannot do so with one that is written in Python.
    recording: set[str] = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.add("mpi")
    c10d._new_process_group_helper = _telling_more(c10d._new_process_group_helper)
    from torch.distributed.rendezvous import register_rendezvous_handler

    register_rendezvous_handler("mpi", _rendezvous)


class ProcessGroupMPI:
    """Stands where a PyTorch that was built with MPI has its own class of this name."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        """Of `ranks`, the calling rank among them; an empty list: of all."""
        from phalanx.torch_backend.joining import create

        return create(ranks)


def _create(options: Any, _: Any = None) -> Any:
    return ProcessGroupMPI.create(list(options.global_ranks_in_group))


def _telling_more(helper: Any) -> Any:
    """PyTorch's function that makes every group, which keeps name, timeout and store from backend
    mpi, and gives other backends no store beside it."""

    def new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        backend = kwargs["backend"] if "backend" in kwargs else args[3]
        if "mpi" not in str(backend):
            return helper(*args, **kwargs)
        from phalanx.torch_backend.joining import make_group

        return make_group(helper, *args, **kwargs)

    return new_process_group_helper


def _rendezvous(url: str, *_: Any, **__: Any) -> Any:
    """init_method="mpi://": ranks and store from MPI, for other backends too."""
    from phalanx.torch_backend.joining import rendezvous

    return rendezvous(url)
