"""Dropout, weights, clipping and a scheduler."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout

import phalanx

torch.manual_seed(0)
data = torch.randn(70, 8), torch.randint(-1, 3, (70,))
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.LayerNorm(16), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
run = phalanx.start(
    model,
    optimizer,
    data,
    batch_size=23,
    scheduler=scheduler,
    clip_norm=0.5,
    strategy_options={"compress": "fp16"},
)
for inputs, targets in run:
    losses = cross_entropy(
        dropout(run.model(inputs), 0.1), targets, ignore_index=-1, reduction="sum"
    )
    known = int((targets >= 0).sum())
    run.backward(losses / max(1, known), weight=known)
