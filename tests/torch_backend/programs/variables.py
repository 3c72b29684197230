"""Start under an MPI launcher as usual DDP scripts do: by Gloo first, then by mpi."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist

assert dist.is_mpi_available()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == (str(rank), str(size))
child = "import os, torch; print(os.environ['RANK'], os.environ['MASTER_PORT'])"
words = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
assert words.stdout.split() == [str(rank), os.environ["MASTER_PORT"]], words.stdout

for backend in ("gloo", "mpi"):
    dist.init_process_group(backend)  # env://
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3
    dist.destroy_process_group()
print(f"rank {rank} of {size} is done", flush=True)
