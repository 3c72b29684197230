"""The other samples of the batch are the negatives: each rank has its own alone."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

import phalanx

torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = phalanx.start(model, optimizer, torch.randn(64, 8), batch_size=24, epochs=4)
for batch in run:
    rows = normalize(run.model(batch.data))
    views = normalize(run.model(batch.data + 0.1))
    run.backward(cross_entropy(rows @ views.T, torch.arange(len(rows))))
