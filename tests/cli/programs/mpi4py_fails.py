"""Plain mpi4py, of which rank 1 fails while the others wait for it."""

import sys

from mpi4py import MPI


class Typed:
    value: int


assert Typed.__annotations__["value"] is int, "no future statement but the program's own"
rank = MPI.COMM_WORLD.Get_rank()
print(f"{__name__} {sys.argv[1:]} in {sys.path[0]}")
if rank == 1 and "exit" in sys.argv:
    sys.exit(3)
if rank == 1:
    raise ValueError("rank 1 has had enough")
MPI.COMM_WORLD.Barrier()
