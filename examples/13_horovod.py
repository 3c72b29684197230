"""A program for Horovod, with one changed line.

    python examples/13_horovod.py
    phalanx launch -n 2 examples/13_horovod.py

Different from 06: Horovod's API. The import was `import horovod.torch as hvd`.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import phalanx.horovod as hvd

EPOCHS, BATCH, RATE = 20, 50, 0.3
hvd.init()
torch.manual_seed(0)

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
num_train = 1500
train = TensorDataset(images[:num_train], labels[:num_train])
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train, batch_size=BATCH // hvd.size(), sampler=sampler)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

# Each rank tests a part; their numbers of digits differ by at most one.
mine = slice(num_train + hvd.rank(), None, hvd.size())
right = (model(images[mine]).argmax(1) == labels[mine]).float().mean()
right = hvd.allreduce(right, name="accuracy")
if hvd.rank() == 0:
    print(f"{right:.1%} of digits never seen are read right, by {hvd.size()} ranks")
