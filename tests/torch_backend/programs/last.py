"""A user's own script, in which rank 1 does what the first word says while the others are in an
all-reduce: it raises, or asks itself to end as a batch system would."""

import os
import signal
import sys

import torch
import torch.distributed as dist

dist.init_process_group("mpi")
tensor = torch.ones(4)
for _ in range(5):
    dist.all_reduce(tensor)
if dist.get_rank() == 1:
    if sys.argv[1] == "raise":
        raise ValueError("no such luck")
    os.kill(os.getpid(), signal.SIGTERM)
dist.all_reduce(tensor)
