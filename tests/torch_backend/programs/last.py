"""A user's own script: rank 1 raises while the others are in an all-reduce."""

import torch
import torch.distributed as dist

dist.init_process_group("mpi")
tensor = torch.ones(4)
for _ in range(5):
    dist.all_reduce(tensor)
if dist.get_rank() == 1:
    raise ValueError("no such luck")
dist.all_reduce(tensor)
