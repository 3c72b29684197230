"""Try to begin, in the way of the first word, and say what came of it."""

import sys

import torch.distributed as dist

if sys.argv[1:] == ["finalised"]:
    from mpi4py import MPI

    MPI.Finalize()
try:
    dist.init_process_group("mpi")
except (RuntimeError, ValueError) as error:
    print(f"{type(error).__name__}: {error}", flush=True)
else:
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} is done", flush=True)
