"""Data parallel with Phalanx's wrapper: gradients are summed in place.

    mpiexec -n 2 python examples/07_data_parallel.py

Different from 06: `phalanx.DataParallel` instead of DDP, and no process group. Ranks of one node
share the memory of the gradients, so that nothing is copied into messages.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from phalanx import DataParallel, World

EPOCHS, BATCH, RATE = 20, 50, 0.3
torch.set_num_threads(1)
world = World.create()

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
num_train = 1500

torch.manual_seed(0)
model = DataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), world)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

order = torch.Generator().manual_seed(1)
for _ in range(EPOCHS):
    for batch in torch.randperm(num_train, generator=order).split(BATCH):
        mine = batch.tensor_split(world.size)[world.rank]
        optimizer.zero_grad()
        # The wrapper averages over ranks: times their number, that is the mean over samples.
        loss = cross_entropy(model(images[mine]), labels[mine], reduction="sum")
        (loss * world.size / len(batch)).backward()
        optimizer.step()

right = (model.module(images[num_train:]).argmax(1) == labels[num_train:]).float().mean()
if world.rank == 0:
    print(f"{right:.1%} of digits never seen are read right, by {world.size} ranks")
model.close()
world.close()
