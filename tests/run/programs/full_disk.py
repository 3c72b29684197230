"""Trains, and fills the disk of its records after two steps: `full_disk.py folder fails`."""

import contextlib
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

import phalanx

folder = Path(sys.argv[1])
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(16, 4), torch.randint(3, (16,))
run = phalanx.start(model, optimizer, data, batch_size=16, epochs=20)
for batch in run:
    if batch.step == 2:
        time.sleep(0.6)  # until records have been written once
        with contextlib.suppress(OSError), (folder / f"filled-{run.rank}").open("wb", 0) as file:
            while True:
                file.write(bytes(64))
        run.barrier()
    time.sleep(0.05)
    run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
    print(f"step {batch.step} of rank {run.rank}")
run.close()
if run.rank == 1 and len(sys.argv) > 2:
    raise ValueError("rank 1 has had enough")
