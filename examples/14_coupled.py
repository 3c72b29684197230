"""A network learns a simulation while that runs, each on its own ranks.

    phalanx launch -n 3 examples/14_coupled.py

Different from 11: rank 0 simulates, and sends its states by mpi4py; the other ranks train.
"""

from collections.abc import Iterator

import numpy as np
import torch
from mpi4py import MPI
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import phalanx

STEPS, SAMPLES = 400, 64
world = MPI.COMM_WORLD
is_simulation = world.rank == 0
part = world.Split(color=int(is_simulation), key=world.rank)


def simulate() -> None:
    """Send each of the other ranks states of a pendulum: angle, speed, and both 0.2 s later."""
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        for rank in range(1, world.size):
            states = random.uniform(-1, 1, (SAMPLES, 2))
            angle, speed = states.T.copy()
            for _ in range(20):
                speed -= 0.01 * 9.81 * np.sin(angle)
                angle += 0.01 * speed
            rows = np.column_stack([states, angle, speed]).astype(np.float32)
            world.Send(rows, dest=rank)


def received() -> Iterator[tuple[Tensor, Tensor]]:
    """Yield micro-batches that the simulation sends to this rank: states, now and later."""
    while True:
        rows = np.empty((SAMPLES, 4), np.float32)
        world.Recv(rows, source=0)
        yield torch.from_numpy(rows[:, :2]), torch.from_numpy(rows[:, 2:])


if not is_simulation:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    size = part.size * SAMPLES
    run = phalanx.start(
        model, optimizer, received(), batch_size=size, steps=STEPS, sharded=True, comm=part
    )
    for batch in run:
        loss = mse_loss(run.model(batch.inputs), batch.targets)
        run.backward(loss)
    if run.is_main:
        world.send(loss.sqrt().item(), dest=0)
else:
    simulate()
    error = world.recv(source=1)
    print(
        f"{1 - error:.1%} of a swing are foretold, by {world.size - 1} ranks beside the simulation"
    )
