"""The MPI library's collectives: one blocking call through mpi4py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from phalanx.bench.config import PathName
from phalanx.bench.paths.path import BenchParams, BenchPath, CaseBuffers, PreparedCase
from phalanx.bench.plan import Case


class MpiLibraryPath(BenchPath):
    """The MPI library, on an mpi4py communicator of all ranks."""

    name: PathName = "mpi"

    def __init__(self, communicator: Any, label: str, params: BenchParams) -> None:
        self.label = label
        self._comm, self._params = communicator.Dup(), params
        self._mpi = sys.modules[type(communicator).__module__]  # where it came from

    def prepare(self, case: Case, private: CaseBuffers) -> PreparedCase:
        is_reduced = case.collective in ("all_reduce", "reduce_scatter")
        if is_reduced and self._params.dtype.name == "bfloat16":
            raise NotImplementedError(f"{self.label} has no bfloat16")
        return PreparedCase(memory=private, call=self._call(case, private))

    def close(self) -> None:
        self._comm.Free()

    def _call(self, case: Case, memory: CaseBuffers) -> Callable[[], object]:
        comm, given, result = self._comm, self._typed(memory.input), self._typed(memory.output)
        name = self._params.op.name
        op = getattr(self._mpi, "PROD" if name == "PRODUCT" else name)
        in_place = self._mpi.IN_PLACE
        match case.collective:
            case "all_reduce":
                return lambda: comm.Allreduce(in_place, given, op)
            case "broadcast":
                return lambda: comm.Bcast(given, 0)
            case "all_gather":
                return lambda: comm.Allgather(given, result)
            case "reduce_scatter":
                return lambda: comm.Reduce_scatter_block(given, result, op)
            case "all_to_all":
                return lambda: comm.Alltoall(given, result)
            case "barrier":
                barrier: Callable[[], object] = comm.Barrier
                return barrier

    def _typed(self, array: Any) -> Any:
        """Return buffer and MPI type, so that mpi4py need not look up the type in each call."""
        names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16_T"}
        kind = getattr(self._mpi, names.get(self._params.dtype.name, ""), None)
        return array if kind is None or kind == self._mpi.DATATYPE_NULL else [array, kind]


def vendor_of(library: str) -> str:
    """Return the vendor, such as `Open MPI` for `Open MPI v5.0.11`."""
    known = {"Open MPI": "Open MPI", "MPICH": "MPICH", "Intel": "Intel MPI"}
    return next((name for start, name in known.items() if library.startswith(start)), "MPI")
