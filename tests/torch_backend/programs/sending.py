"""Rank 0 sends and then computes without ever looking at the message, until rank 1 has got it.

Word: a file by which rank 1 says so.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

LIMIT_S = 30
NUM_BYTES = (1, 2**16, 2**23)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    rank = dist.get_rank()
    matrix = torch.ones(64, 64)
    for size in NUM_BYTES:
        there = folder / str(size)
        dist.barrier()
        if rank == 0:
            work = dist.isend(torch.full((size,), 7, dtype=torch.uint8), 1)
            began = time.monotonic()
            while not there.exists():
                torch.mm(matrix, matrix)
                assert time.monotonic() - began < LIMIT_S, f"{size} bytes did not get away"
            work.wait()
        elif rank == 1:
            got = torch.empty(size, dtype=torch.uint8)
            dist.recv(got, 0)
            assert (got == 7).all()
            there.touch()
    dist.destroy_process_group()
    print(f"rank {rank} is done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
