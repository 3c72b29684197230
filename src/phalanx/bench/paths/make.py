"""Creation of all measured paths, in the same order on every rank; that of the MPI library here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, get_args

from phalanx.bench.call_schedule import Case
from phalanx.bench.config import CollectivesConfig, OnMessages, PathName
from phalanx.bench.paths.engine import prepare_engine, prepare_world
from phalanx.bench.paths.oneccl import oneccl_path
from phalanx.bench.paths.path import (
    BenchParams,
    BenchPath,
    Call,
    CaseBuffers,
    PreparedCase,
    unavailable,
)
from phalanx.comm.world import World

_TORCH: tuple[PathName, ...] = ("torch", "gloo", "nccl")


@contextmanager
def open_paths(
    config: CollectivesConfig, world: World, params: BenchParams
) -> Iterator[list[BenchPath]]:
    """Yield the chosen paths. Creation and closing are collective, so that an error in the block
    closes nothing."""
    names, timeout = config.chosen_paths, timedelta(seconds=config.timeout_s)
    communicator = world.communicator.Dup() if "mpi" in names else None
    uses_torch = any(name in _TORCH for name in names)
    if uses_torch:
        from phalanx.bench.paths.torch_groups import start_torch, torch_path

        start_torch(world, params, timeout)

    def make(name: PathName) -> BenchPath:
        if name in _TORCH:
            return torch_path(name, params, world.local_rank, timeout)
        if name == "mpi":
            label = vendor_of(world.library)
            prepare = partial(prepare_library, communicator, label, params)
            return BenchPath(name=name, label=label, prepare=prepare)
        if name == "deepspeed":
            from phalanx.bench.paths.deepspeed import deepspeed_path

            return deepspeed_path(world, params)
        if name == "oneccl":
            return oneccl_path(world, params)
        if name == "world":
            prepare = partial(prepare_world, world, params)
            return BenchPath(name=name, label="phalanx World", prepare=prepare)
        group, engine = world.group, partial(prepare_engine, world.group, params)
        if name == "window":
            if group.shm is None:
                alone = group.size == 1
                reason = "there is one rank" if alone else "the ranks share no memory here"
                return unavailable(name, "phalanx window", reason)
            engine = partial(engine, allocate=group.shm.allocate)
        elif name in get_args(OnMessages):
            engine = partial(engine, algorithm=name)
        label = "phalanx" if name == "phalanx" else f"phalanx {name}"
        return BenchPath(name=name, label=label, prepare=engine)

    yield [make(name) for name in names]
    if communicator is not None:
        communicator.Free()
    if uses_torch:
        from phalanx.torch_backend.leave_group import destroy_default_group

        destroy_default_group()


def prepare_library(
    comm: Any, label: str, params: BenchParams, case: Case, private: CaseBuffers
) -> PreparedCase:
    """Prepare a case of the MPI library. comm: mpi4py's communicator of all ranks."""
    if case.collective in ("all_reduce", "reduce_scatter") and params.dtype.name == "bfloat16":
        raise NotImplementedError(f"{label} has no bfloat16")
    return PreparedCase(memory=private, call=_call(comm, params, case, private))


def _call(comm: Any, params: BenchParams, case: Case, memory: CaseBuffers) -> Call:
    mpi = sys.modules[type(comm).__module__]  # module of the communicator
    given, result = (_typed(mpi, params, array) for array in (memory.input, memory.output))
    op = getattr(mpi, "PROD" if params.op.name == "PRODUCT" else params.op.name)
    match case.collective:
        case "all_reduce":
            return lambda: comm.Allreduce(mpi.IN_PLACE, given, op)
        case "broadcast":
            return lambda: comm.Bcast(given, 0)
        case "all_gather":
            return lambda: comm.Allgather(given, result)
        case "reduce_scatter":
            return lambda: comm.Reduce_scatter_block(given, result, op)
        case "all_to_all":
            return lambda: comm.Alltoall(given, result)
        case "barrier":
            barrier: Call = comm.Barrier
            return barrier


def _typed(mpi: Any, params: BenchParams, array: Any) -> Any:
    """Return buffer and MPI type, so that mpi4py need not look up the type in each call."""
    names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16_T"}
    kind = getattr(mpi, names.get(params.dtype.name, ""), None)
    return array if kind is None or kind == mpi.DATATYPE_NULL else [array, kind]


def vendor_of(library: str) -> str:
    """Return the vendor, such as `Open MPI` for `Open MPI v5.0.11`."""
    known = {"Open MPI": "Open MPI", "MPICH": "MPICH", "Intel": "Intel MPI"}
    return next((name for start, name in known.items() if library.startswith(start)), "MPI")
