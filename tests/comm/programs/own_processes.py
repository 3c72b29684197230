"""Ranks of one node, each in a PID namespace of its own, as in containers: they exchange messages,
and no file of the user's is taken for memory. Words: a folder."""

import os
import sys
from pathlib import Path

OWN_PROCESSES = ("unshare", "--pid", "--fork", "--mount-proc")
INSIDE = "INSIDE_OF_A_NAMESPACE"

if INSIDE not in os.environ:
    os.environ[INSIDE] = "1"
    os.execvp(OWN_PROCESSES[0], [*OWN_PROCESSES, sys.executable, *sys.argv])

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from phalanx.comm.buffer import Buffer  # noqa: E402
from phalanx.comm.world import World  # noqa: E402

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
data = Path(sys.argv[1]) / f"data {rank}"
content = os.urandom(2**20)
data.write_bytes(content)
files = [data.open("rb") for _ in range(40 if rank else 0)]  # other numbers than on rank 0
world = World.create(timeout_s=30)
assert world.on_one_node
assert world.group.shm is None, f"process {os.getpid()} is not what the others take it for"
array = np.full(100_000, rank + 1, np.float32)
world.group.all_reduce(Buffer.of(array))
assert (array == size * (size + 1) / 2).all()
world.close()
assert data.read_bytes() == content
print(f"\nrank {rank} of {size} is done", flush=True)
