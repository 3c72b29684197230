"""Tensor parallel by PyTorch: `scratch/tensor.py` once more, with a plan of how layers are cut.

    mpiexec -n 2 python examples/09_tensor_parallel.py

Different from 06: a plan instead of a wrapper. The first layer is cut by columns, the second by
rows; all ranks see the same images, and exchange no gradients. PyTorch adds the communication to
the arithmetic; the model is not changed.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

EPOCHS, BATCH, RATE = 5, 50, 0.3
torch.set_num_threads(1)
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
num_train = 1500

torch.manual_seed(0)
width = 16 * size  # hidden values; PyTorch cuts into equal parts only
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

order = torch.Generator().manual_seed(1)
for _ in range(EPOCHS):
    for batch in torch.randperm(num_train, generator=order).split(BATCH):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()

with torch.no_grad():
    right = (model(images[num_train:]).argmax(1) == labels[num_train:]).float().mean()
if rank == 0:
    hidden = model[0].weight.to_local().shape[0]
    print(f"{right:.1%} of digits never seen are read right; this rank has {hidden} hidden values")
dist.destroy_process_group()
