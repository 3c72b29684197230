"""Two ranks that compute by different instruction sets; in the end an operation that varies."""

import os

RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
if RANK == 1:
    os.environ["ATEN_CPU_CAPABILITY"] = "default"

import torch  # noqa: E402  # which reads the variable
from torch import nn  # noqa: E402

import phalanx  # noqa: E402

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = phalanx.start(model, optimizer, torch.randn(8, 4), batch_size=4, bitwise=True)
for batch in run:
    outputs = run.model(batch.data).put_(torch.tensor([0]), torch.ones(1))
    run.backward(outputs.mean())
