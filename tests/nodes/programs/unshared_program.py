"""On ranks of two nodes: a program that resumes from a checkpoint that only rank 0's node has.

argv: a folder that each node has for itself. Every rank prints what is refused.
"""

import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import torch
from mpi4py import MPI
from safetensors.torch import load_file
from torch import nn

import phalanx

FOLDER = Path(sys.argv[1])
HOST = socket.gethostname()


def train(folder: str, strategy: str = "mpi", **options: Any) -> int:
    """Train, and return the rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    data = torch.randn(64, 16), torch.randint(4, (64,))
    run = phalanx.start(
        model,
        torch.optim.Adam(model.parameters()),
        data,
        batch_size=16,
        epochs=3,
        strategy=strategy,
        checkpoint_dir=FOLDER / folder,
        timeout_s=60,
        **options,
    )
    for inputs, targets in run:
        run.backward(nn.functional.cross_entropy(run.model(inputs), targets))
    run.close()
    return MPI.COMM_WORLD.rank


def same(one: str, other: str) -> bool:
    """Return whether the last checkpoints of two runs have the same tensors."""
    for file in ("model.safetensors", "optimizer.safetensors"):
        tensors, others = (load_file(FOLDER / f / "epoch-0003" / file) for f in (one, other))
        if tensors.keys() != others.keys():
            return False
        if not all(torch.equal(tensor, others[name]) for name, tensor in tensors.items()):
            return False
    return True


def refused(words: str, folder: str, **options: Any) -> None:
    try:
        train(folder, **options)
    except phalanx.UserError as error:
        print(f"{words} {HOST}: {error}", flush=True)


for name in ("mpi", "zero"):
    rank = train(f"{name}-whole", name)
    if rank == 0:
        shutil.copytree(FOLDER / f"{name}-whole/epoch-0001", FOLDER / f"{name}/epoch-0001")
    train(f"{name}", name, resume=True)
    if rank == 0:
        print(f"case {name}: {same(name, f'{name}-whole')}", flush=True)

# The newest checkpoint is on n1 alone: the run once began there.
names = ("epoch-0001", "epoch-0002") if rank == 0 else ()
files = {
    f"{name}/{path.name}": path.read_bytes()
    for name in names
    for path in (FOLDER / "mpi-whole" / name).iterdir()
}
for name, content in MPI.COMM_WORLD.bcast(files).items():
    for folder in ("moved", "left"):
        path = FOLDER / folder / name
        if HOST == "n1" or (folder == "moved" and name.startswith("epoch-0001") and rank == 0):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
MPI.COMM_WORLD.barrier()
refused("moved", "moved", resume=True)
refused("left", "left")
