"""An autoencoder that draws in the loop, by the same numbers for every cut."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

import phalanx

torch.manual_seed(0)
encoder, decoder = nn.Linear(8, 4), nn.Linear(2, 8)
model = nn.Sequential(encoder, decoder)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = phalanx.start(model, optimizer, torch.randn(64, 8), batch_size=16)
for batch in run:
    mean, width = encoder(batch.data).chunk(2, 1)
    hidden = mean + width.exp() * torch.randn_like(mean)
    run.backward(mse_loss(decoder(hidden), batch.data))
