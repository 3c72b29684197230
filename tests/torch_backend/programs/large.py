"""More than 2³¹ elements in one call, of one byte each."""

import torch
import torch.distributed as dist

COUNT = 2**31 + 3

dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.full((COUNT,), rank + 1, dtype=torch.uint8)
dist.all_reduce(tensor)
assert int(tensor.min()) == int(tensor.max()) == sum(range(1, size + 1))
tensor.fill_(rank)
tensor[-1] = 7 + rank
dist.broadcast(tensor, src=1)
assert int(tensor[:-1].max()) == 1
assert int(tensor[-1]) == 8
if rank == 0:
    dist.send(tensor, dst=1)
if rank == 1:
    tensor.zero_()
    dist.recv(tensor, src=0)
    assert int(tensor[:-1].min()) == 1
    assert int(tensor[-1]) == 8
dist.destroy_process_group()
print(f"\nrank {rank} of {size} is done", flush=True)
