"""Trains with a slow rank: words: folder of the results, seconds of a micro-batch by rank."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import phalanx

folder, seconds = Path(sys.argv[1]), [float(word) for word in sys.argv[2:]]
torch.manual_seed(3)
data = torch.randn(64, 10), torch.randint(4, (64,))
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
run = phalanx.start(
    model,
    SGD(model.parameters(), lr=0.1, momentum=0.9),
    data,
    batch_size=24,
    micro_batches=8,
    bitwise=True,
    strategy_options={"rebalance": True},
    epochs=43,
    run_dir=folder / "run" if len(seconds) > 1 else None,
)
for batch in run:
    time.sleep(seconds[run.rank])
    run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
sums = [value.double().sum().item() for value in model.state_dict().values()]
(folder / f"{len(seconds)}-{run.rank}.json").write_text(json.dumps(sums))
assert "PHALANX_REBALANCE" not in os.environ
