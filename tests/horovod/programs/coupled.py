"""Rank 0 simulates and sends what it sees by mpi4py; the other ranks train a network on it."""

import numpy as np
import torch
from mpi4py import MPI

import phalanx.horovod as hvd

world = MPI.COMM_WORLD
is_simulation = world.rank == 0
part = world.Split(color=int(is_simulation), key=world.rank)
STEPS, SAMPLES = 60, 32

if not is_simulation:
    hvd.init(comm=part)
    assert (hvd.rank(), hvd.size()) == (part.rank, world.size - 1)
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2))
    samples = torch.empty(SAMPLES, 3)
    for _ in range(STEPS):
        world.Recv(samples.numpy(), 0)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(samples[:, :2]), samples[:, 2:]).backward()
        optimizer.step()
    if hvd.rank() == 0:
        world.send(model.weight.detach().numpy(), 0)
else:
    random = np.random.default_rng(0)
    for _ in range(STEPS):
        for network in range(1, world.size):
            inputs = random.standard_normal((SAMPLES, 2), np.float32)
            world.Send(np.concatenate([inputs, inputs @ [[3.0], [-1.0]]], 1).astype("f4"), network)
    weights = world.recv(source=1)
    if np.allclose(weights, [[3, -1]], atol=1e-2):
        print("the network has learned the simulation", flush=True)
world.Barrier()
