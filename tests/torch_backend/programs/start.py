"""Try to begin, in the way of the first word, and say what came of it."""

import os
import sys
import time
from datetime import timedelta

import mpi4py
import torch.distributed as dist

if sys.argv[1:] == ["finalised"]:
    from mpi4py import MPI

    MPI.Finalize()
if sys.argv[1:] == ["uninitialised"]:  # a program that wants to initialise MPI itself
    mpi4py.rc.initialize = False
if sys.argv[1:] == ["bound"]:  # as a launcher may do
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if sys.argv[1:2] == ["level"]:
    mpi4py.rc.thread_level = sys.argv[2]
    from mpi4py import MPI
if sys.argv[1:] == ["alone"]:
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 1:
        time.sleep(8)  # longer than rank 0 waits
        print("rank 1 ends", flush=True)
        sys.exit()
try:
    dist.init_process_group("mpi", timeout=timedelta(seconds=2))
except (RuntimeError, ValueError) as error:
    print(f"{type(error).__name__}: {error}", flush=True)
    if sys.argv[1:] == ["alone"]:
        raise  # ends all ranks, also the one that sleeps
else:
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} is done", flush=True)
