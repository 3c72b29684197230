"""Ranks that torch.multiprocessing starts, as scripts do that need no launcher."""

import os
import sys

import torch
import torch.distributed as dist


def run(rank: int, size: int, url: str) -> None:
    dist.init_process_group("mpi", init_method=url, rank=rank, world_size=size)
    tensor = torch.ones(5)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 5
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.multiprocessing.spawn(run, args=(2, f"file://{sys.argv[1]}"), nprocs=2)
