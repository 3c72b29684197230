"""DataParallel against one process that sees the whole batch. Float64, parameters compared."""

import itertools
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.comm import settings
from phalanx.comm.world import World
from phalanx.jobs.detect import detect
from phalanx.parallel.data_parallel import DataParallel

# As on nodes with unlike CPUs.
launched = detect(os.environ)
assert launched is not None
settings.last_level_cache_bytes = lambda: 2**25 << launched.rank
world = World.create(timeout_s=30)
rank, size = world.rank, world.size
torch.set_default_dtype(torch.float64)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(80, 50), nn.Linear(50, 10)
        self.unused, self.sometimes = nn.Linear(7, 7), nn.Linear(10, 10)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x: Tensor, with_extra: bool) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        return self.sometimes(y) if with_extra else y


def made() -> tuple[Net, Net]:
    """The one-process truth, and the same model to be wrapped; other ranks start elsewhere."""
    torch.manual_seed(0)
    truth, own = Net(), Net()
    own.load_state_dict(truth.state_dict())
    if rank:
        with torch.no_grad():
            for parameter in own.parameters():
                parameter.add_(1)
    return truth, own


def inputs(step: int, part: int | None) -> Tensor:
    """(4 * size, 80), or this rank's 4 rows."""
    whole = torch.randn(4 * size, 80, generator=torch.Generator().manual_seed(step))
    return whole if part is None else whole[4 * part : 4 * part + 4]


def check(set_to_none: bool, num_accumulated: int, **options: Any) -> None:
    truth, own = made()
    model = DataParallel(own, world, **options)
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (truth, own)]
    for step in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)
        for number in range(num_accumulated):
            key = 100 * step + number
            truth(inputs(key, None), True).square().mean().backward()
            if number < num_accumulated - 1:
                with model.no_sync():
                    model(inputs(key, rank), True).square().mean().backward()
            else:
                model(inputs(key, rank), True).square().mean().backward()
        for p in truth.unused.parameters():
            p.grad = torch.zeros_like(p)
        for optimizer in optimizers:
            optimizer.step()
    for (name, a), b in zip(truth.named_parameters(), own.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-10, (name, options, set_to_none, num_accumulated)
    model.close()


planned = world.gather(np.array([float(DataParallel(made()[1], world)._reducer._largest_bytes)]))
assert planned is None or (planned == planned[0]).all(), planned
for set_to_none, num_accumulated in itertools.product([True, False], [1, 3]):
    check(set_to_none, num_accumulated)
    check(set_to_none, num_accumulated, bucket_bytes=1000)

# A layer that only rank 0 uses: the others count as zeros, and nobody waits for ever.
_, own = made()
model = DataParallel(own, world)
for _ in range(3):
    model(inputs(0, rank), rank == 0).sum().backward()
bias = own.sometimes.bias.grad
assert bias is not None
assert torch.allclose(bias, torch.full((10,), 3 * 4.0) / size), bias  # three passes added up

# Running statistics are rank 0's.
norm = DataParallel(nn.Sequential(nn.BatchNorm1d(80), nn.Linear(80, 1)), world)
for step in range(3):
    norm(inputs(step, rank) + rank).sum().backward()
norm(inputs(9, 0))
statistics = norm.module[0].running_mean
gathered = world.gather(statistics.numpy())
assert gathered is None or (gathered == gathered[0]).all()
print(f"\nrank {rank} of {size} is done", flush=True)
world.close()
