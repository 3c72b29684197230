"""Each rank: optimizer state dealt out among the ranks, for the MLP and the GPT.

Word: backend.
"""

import sys

import torch
from on_mesh import ADAM, cases, compare, moved_so_far, trained
from tests.parallel.stepping import make_step

from phalanx.comm.world import World
from phalanx.models.build import build_model
from phalanx.models.options import ModelOptions
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import Batch
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.zero import ZeroOne


def step_of(strategy: Strategy, generator: torch.Generator) -> tuple[int, int] | None:
    """Bytes that one step of the whole MLP sends and receives."""
    before = moved_so_far(strategy)
    inputs = torch.rand(4, 1, 28, 28, generator=generator)
    make_step(strategy, Batch(inputs, torch.zeros(4, dtype=torch.int64), 4, 4 * strategy.size, 0))
    after = moved_so_far(strategy)
    return after and before and (after[0] - before[0], after[1] - before[1])


def check_costs(strategy: ZeroOne) -> None:
    """Of a model of a million parameters."""
    model = build_model("mlp", seed=0, options=ModelOptions(width=1024))
    strategy.prepare(model, ADAM)
    generator = torch.Generator().manual_seed(strategy.rank)
    for _ in range(3):  # DDP makes its buckets anew after the first
        moved = step_of(strategy, generator)
    expected = strategy.expected(12)
    if moved is not None:
        for found, said in zip(moved, (expected.sent_bytes, expected.received_bytes), strict=True):
            assert abs(found / said - 1) < 1e-4, f"{found} bytes, not {said}"
    state = strategy.state_bytes()
    assert abs(sum(state) / expected.state_bytes - 1) < 0.1, f"{state}, not {expected}"
    whole = 8 * sum(parameter.numel() for parameter in model.parameters())
    rows = strategy.group.gather([state.optimizer])
    if rows is not None:
        assert whole <= sum(row[0] for row in rows) < whole + 100, "each state on one rank"


def main(backend: str) -> None:
    torch.set_num_threads(1)
    chosen = "gloo" if backend == "gloo" else "mpi"
    for case in cases(3):
        strategy = ZeroOne(World.create(timeout_s=30), backend=chosen)
        strategy.expected = lambda _: None  # checked below, to within DDP's buckets
        rank, size = strategy.rank, strategy.size
        found = trained(strategy, case, ADAM, seed=3 + rank)
        compare(
            found, trained(Replicas(RunGroup()), case, ADAM, seed=3), f"{case.model}, rank {rank}"
        )
        strategy.close()
    strategy = ZeroOne(World.create(timeout_s=30), backend=chosen)
    check_costs(strategy)
    strategy.close()
    print(f"\nrank {rank} of {size} is done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
