"""Sum over all ranks with mpi4py; print each rank's host and the sum, on rank 0."""

import socket

from mpi4py import MPI

world = MPI.COMM_WORLD
rows = world.gather((world.rank, socket.gethostname(), world.allreduce(world.rank + 1)))
if rows is not None:
    for row in rows:
        print(*row, flush=True)
