"""Each rank: rank 1 fails in the way of the first word; the others must not wait for ever."""

import os
import sys
import time

import torch
import torch.distributed as dist

way = sys.argv[1]
dist.init_process_group("mpi")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
if rank == 1:
    time.sleep(0.3)
    if way == "raise":
        raise ValueError("the data of rank 1 is broken: \udcff")
    if way == "die":
        os._exit(7)
    if way == "exit":
        sys.exit(3)
    if way == "leave":
        sys.exit()
if way == "thread":  # a collective is under way when the program ends
    work = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
    sys.exit()
try:
    dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    print(f"rank {rank} says: {type(error).__name__}: {error}", flush=True)
    raise
