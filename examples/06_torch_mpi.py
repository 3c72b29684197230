"""A stock PyTorch program, with `DistributedDataParallel`, over MPI.

    mpiexec -n 2 python examples/06_torch_mpi.py

Different from `scratch/schemes.py`: PyTorch computes the gradients, and DDP sums them meanwhile.
The file does not mention Phalanx: installing it makes the backend "mpi" work, on the stock wheel.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

EPOCHS, BATCH, RATE = 20, 50, 0.3
torch.set_num_threads(1)
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
num_train = 1500

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

order = torch.Generator().manual_seed(1)
for _ in range(EPOCHS):
    for batch in torch.randperm(num_train, generator=order).split(BATCH):
        mine = batch.tensor_split(size)[rank]
        optimizer.zero_grad()
        # DDP averages over ranks: times `size`, that is the mean over the samples of the batch.
        loss = cross_entropy(model(images[mine]), labels[mine], reduction="sum")
        (loss * size / len(batch)).backward()
        optimizer.step()

right = (model.module(images[num_train:]).argmax(1) == labels[num_train:]).float().mean()
if rank == 0:
    print(f"{right:.1%} of digits never seen are read right, by {size} ranks over MPI")
dist.destroy_process_group()
