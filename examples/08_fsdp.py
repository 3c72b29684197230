"""Fully sharded: no rank keeps the full model, its gradients or the optimizer state.

    mpiexec -n 2 python examples/08_fsdp.py

Different from 06: `fully_shard` (FSDP2) instead of DDP. Each rank keeps a shard of every layer. A
layer's weights are gathered when it runs, and freed afterwards.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

EPOCHS, BATCH, RATE = 20, 50, 0.01
torch.set_num_threads(1)
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
num_train = 1500

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
whole = sum(parameter.numel() for parameter in model.parameters())
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
kept = sum(parameter.to_local().numel() for parameter in model.parameters())

order = torch.Generator().manual_seed(1)
for _ in range(EPOCHS):
    for batch in torch.randperm(num_train, generator=order).split(BATCH):
        mine = batch.tensor_split(size)[rank]
        optimizer.zero_grad()
        loss = cross_entropy(model(images[mine]), labels[mine], reduction="sum")
        (loss * size / len(batch)).backward()
        optimizer.step()

with torch.no_grad():
    right = (model(images[num_train:]).argmax(1) == labels[num_train:]).float().mean()
if rank == 0:
    print(f"{right:.1%} of digits never seen are read right; kept: {kept} of {whole} parameters")
dist.destroy_process_group()
