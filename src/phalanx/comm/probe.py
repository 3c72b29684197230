"""A program for ranks that says how MPI is here: `mpiexec -n 2 python -m phalanx.comm.probe`.

Rank 0 prints one JSON object. Where launcher and library are of different MPIs every process is
a rank 0 of 1, and says so.
"""

from __future__ import annotations

import json
import os
from typing import Any

from phalanx.comm import kernels
from phalanx.comm.dtypes import FLOAT32
from phalanx.comm.gpu import is_gpu_aware, query_gpu_support
from phalanx.comm.select import explain, requested_algorithm
from phalanx.comm.world import World
from phalanx.jobs.orphan import end_with_parent


def describe(mpi: Any) -> dict[str, object]:
    """Describe the MPI library and this rank's engine. Collective. mpi: the module mpi4py.MPI."""
    return {
        "world_size": mpi.COMM_WORLD.Get_size(),
        "library": " ".join(mpi.Get_library_version().splitlines()[0].split(",")[0].split()),
        "abi": getattr(mpi, "Get_abi_version", lambda: (-1, -1))(),  # exists since mpi4py 4.1
        "thread_level": _thread_level(mpi),
        "gpu_aware": is_gpu_aware(os.environ, mpi.Get_library_version(), query_gpu_support(mpi)),
        **_engine(mpi),
    }


def _engine(mpi: Any) -> dict[str, object]:
    """Describe the route that our own collectives take here."""
    # Not `World.create`, which refuses processes that MPI does not connect.
    world = World(mpi.COMM_WORLD, timeout_s=20)
    requested = requested_algorithm(os.environ)
    lines = explain(world.group.topology, requested, FLOAT32, is_native=True)
    world.close()
    return {"kernels": kernels.compiled() is not None, "all_reduce": lines}


def _thread_level(mpi: Any) -> str:
    names = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    levels = {getattr(mpi, f"THREAD_{name}"): name.lower() for name in names}
    return levels[mpi.Query_thread()]


def main() -> None:
    """Run the probe on each rank."""
    end_with_parent()
    from mpi4py import MPI

    found = describe(MPI)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
