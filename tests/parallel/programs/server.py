"""Parameter servers at work on ranks of which one is slow.

Words: "leads" for what workers see of each other; "late" for a worker that does not come.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tests.parallel.stepping import make_step
from torch import nn

from phalanx.comm.world import World
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.options import ServerMode, ServerOptions
from phalanx.parallel.server import Server
from phalanx.parallel.step import Batch

STEPS, SLOW_S = 12, 0.05
CASES: tuple[tuple[int, ServerMode, int], ...] = (
    (1, "synchronous", 0),
    (1, "asynchronous", 0),
    (1, "bounded", 0),
    (1, "bounded", 1),
    (2, "asynchronous", 0),
    (2, "bounded", 2),
)


class Timed(Server):
    """Notes when it begins a step and when it hands over the gradients of it."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self.began: list[float] = []
        self.pushed: list[float] = []
        self.busy = 0.0
        """Of the time that it served, the part in which it used a core."""

    def serve(self, num_steps: int) -> None:
        used, began = time.process_time(), time.monotonic()
        super().serve(num_steps)
        self.busy = (time.process_time() - used) / (time.monotonic() - began)

    def exchange(self, batch: Batch, computed_at: float, *, is_updated: bool) -> float:
        self.pushed.append(time.monotonic())
        return super().exchange(batch, computed_at, is_updated=is_updated)


def batches(strategy: Server) -> Iterator[Batch]:
    """One of the workers has nothing of the last batch."""
    generator = torch.Generator().manual_seed(strategy.rank)
    for step in range(STEPS):
        inputs = torch.rand(4, 6, generator=generator, dtype=torch.float64)
        targets = torch.randint(3, (4,), generator=generator)
        number = 0 if step == STEPS - 1 and strategy.data_rank == 1 else 4  # padding
        yield Batch(inputs, targets, number, 4 * strategy.data_size, step)


def train(world: World, mode: ServerMode, staleness: int, servers: int, is_slow: bool) -> Timed:
    options = ServerOptions(servers=servers, server_mode=mode, staleness=staleness)
    strategy = Timed(world, options)
    torch.manual_seed(strategy.rank)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    strategy.prepare(model, OptimizerConfig(name="adam", learning_rate=0.01))
    strategy.group.barrier()
    if strategy.role == "server":
        strategy.serve(STEPS)
    else:
        for batch in batches(strategy):
            strategy.began.append(time.monotonic())
            time.sleep(SLOW_S if is_slow else 0)
            make_step(strategy, batch)
    strategy.finish_epoch()
    strategy.group.barrier()
    return strategy


def observed_lead(began: np.ndarray, pushed: np.ndarray) -> int:
    """By how many steps a worker was ahead of the slowest when it began one, at the most.

    began, pushed: (workers, STEPS) seconds on the clock of the node.
    """
    leads = [
        step - min(int((times < moment).sum()) for times in pushed)
        for row in began
        for step, moment in enumerate(row)
    ]
    return max(leads)


def check(world: World, mode: ServerMode, staleness: int, servers: int) -> None:
    is_slow = world.rank == world.size - servers - 1
    strategy = train(world, mode, staleness, servers, is_slow)
    weights = torch.cat([p.detach().flatten() for p in strategy.model.parameters()])
    everyone = world.gather(weights.numpy())
    rows = world.gather(np.array((strategy.began + strategy.pushed) or [0.0] * 2 * STEPS))
    workers = world.size - servers
    if world.rank != workers:
        assert not strategy.staleness(), "an update is counted once, on the first server"
    if rows is not None and everyone is not None:
        assert all((row == everyone[0]).all() for row in everyone), "weights differ between ranks"
    rows = world.share(rows)
    if world.rank != workers:
        return
    assert rows is not None, "gathered on rank 0"
    assert strategy.busy < 0.4, f"a server is busy for {strategy.busy:.0%} while it waits"
    seen, updates = strategy.staleness(), workers * STEPS - 1  # one had no samples
    lead = observed_lead(rows[:workers, :STEPS], rows[:workers, STEPS:])
    if mode == "synchronous":
        assert (seen, lead) == (Counter({0: STEPS}), 0), (seen, lead)
        return
    assert sum(seen.values()) == updates, seen
    assert max(seen) > 0, "nobody overtook anybody"
    assert lead <= max(strategy.leads), (lead, strategy.leads)
    if mode == "bounded":
        assert max(strategy.leads) <= staleness, strategy.leads
        # Between two updates of a worker no other makes more than the bound allows both ways.
        assert max(seen) <= (workers - 1) * (2 * staleness + 1), seen
    else:
        assert max(strategy.leads) > 1, strategy.leads
    print(f"{servers} {mode} {staleness}: lead {lead}, staleness {dict(seen)}, {strategy.busy:.2f}")


def leads() -> None:
    for servers, mode, staleness in CASES:
        world = World.create(timeout_s=60)
        check(world, mode, staleness, servers)
        world.close()
    print("all modes are done", flush=True)


def late() -> None:
    world = World.create(timeout_s=30)
    strategy = Timed(world, ServerOptions(server_mode="bounded", staleness=0))
    strategy.prepare(nn.Linear(6, 3).double(), OptimizerConfig(name="sgd", learning_rate=0.01))
    strategy.group.barrier()
    world.group.timeout_s = 1
    try:
        if strategy.role == "server":
            strategy.serve(STEPS)
        elif world.rank == 1:
            time.sleep(6)
        else:
            make_step(strategy, next(batches(strategy)))
    except TimeoutError as error:
        print(f"rank {world.rank} says: {error}", flush=True)
    time.sleep(4)  # keep the launcher from ending the others before they have spoken
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"leads": leads, "late": late}[sys.argv[1]]()
