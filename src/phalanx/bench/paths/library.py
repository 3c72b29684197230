"""The MPI library's collectives: one blocking call through mpi4py."""

from __future__ import annotations

import sys
from typing import Any

from phalanx.bench.paths.path import BenchParams, Call, CaseBuffers, PreparedCase
from phalanx.bench.plan import Case


def prepare_library(
    comm: Any, label: str, params: BenchParams, case: Case, private: CaseBuffers
) -> PreparedCase:
    """Prepare a case of the MPI library. comm: mpi4py's communicator of all ranks."""
    if case.collective in ("all_reduce", "reduce_scatter") and params.dtype.name == "bfloat16":
        raise NotImplementedError(f"{label} has no bfloat16")
    return PreparedCase(memory=private, call=_call(comm, params, case, private))


def _call(comm: Any, params: BenchParams, case: Case, memory: CaseBuffers) -> Call:
    mpi = sys.modules[type(comm).__module__]  # where it came from
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
