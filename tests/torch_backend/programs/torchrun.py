"""Ranks of torchrun on backend mpi: no MPI is loaded, and groups come and go."""

import os
import sys

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert not dist.is_mpi_available()  # programs that choose by it stay with gloo


def check_messages() -> None:
    """Long and short ones, in a ring, and from anybody."""
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 3_000_000):
        given, taken = torch.full((count,), float(rank)), torch.empty(count)
        sends = dist.P2POp(dist.isend, given, after)
        for work in dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, taken, before)]):
            work.wait()
        assert (taken == before).all()
    if rank == 0:
        sources = {dist.recv(torch.empty(2)) for _ in range(1, size)}
        assert sources == set(range(1, size))
    else:
        dist.send(torch.ones(2), 0)


def check_world() -> None:
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, size, "mpi")
    tensor = torch.full((100_000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert (tensor == size * (size + 1) / 2).all()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]


for _ in range(2):
    dist.init_process_group("mpi")
    check_world()
    check_messages()
    ends = dist.new_group([0, size - 1])
    beside = dist.new_group(backend="gloo")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=beside)
    if rank in (0, size - 1):
        dist.all_reduce(tensor, group=ends)
        assert tensor.tolist() == [2 * size] * 3
    dist.destroy_process_group()

dist.init_process_group("gloo")
second = dist.new_group(backend="mpi")
tensor = torch.ones(3)
dist.all_reduce(tensor, group=second)
assert tensor.tolist() == [size] * 3
dist.destroy_process_group()

try:
    dist.init_process_group("mpi", rank=rank, world_size=size + 1)
except (RuntimeError, ValueError) as error:
    print(f"refused: {error}", flush=True)
assert not any(name.startswith("mpi4py") for name in sys.modules)
print(f"rank {rank} of {size} is done", flush=True)
