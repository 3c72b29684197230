"""Each rank: train a model whose parameters the ranks of a node share, on several nodes.

Word: a link, by which every rank counts as a node of its own; none on nodes that there are.
"""

import sys

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.comm.link import Link
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.optimizer import torch_optimizer
from phalanx.parallel.shared import Shared

RULES = [
    OptimizerConfig(name="sgd", learning_rate=0.1),
    OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    OptimizerConfig(name="adam", learning_rate=0.01, weight_decay=0.01),
    OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.01),
]
NUM_STEPS = 5


class Model(nn.Module):
    """With parameters of odd sizes, of `width` values and more."""

    def __init__(self, seed: int, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        sizes = [(7, width), (33,), (5, 3)]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.rand(*size, generator=generator, dtype=torch.float64))
            for size in sizes
        )

    def forward(self, scale: float) -> Tensor:
        terms = [(scale * weight.sin()).square().sum() for weight in self.weights]
        return torch.stack(terms).sum()


def inputs(step: int, rank: int) -> float:
    return 1.0 + step + rank / 7


def truth(rule: OptimizerConfig, size: int, width: int) -> list[Tensor]:
    model = Model(0, width)
    optimizer = torch_optimizer(rule, list(model.parameters()))
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = torch.stack([model(inputs(step, rank)) for rank in range(size)]).sum() / 10
        loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def check_same(world: World, tensors: list[Tensor]) -> None:
    """Every rank has the bits of rank 0."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy().copy()
    first = flat.copy()
    world.broadcast(first)
    assert flat.tobytes() == first.tobytes(), f"rank {world.rank} has other bits than rank 0"


def check_once_a_node(strategy: Shared, world: World, weight: Tensor) -> None:
    """Peers of the node see what a rank writes, those of other nodes do not."""
    kept = weight[3, 5].item()
    nodes = world.group.nodes
    strategy.group.barrier()
    if world.rank == world.size - 1:
        with torch.no_grad():
            weight[3, 5] = 42.0
    strategy.group.barrier()
    assert (weight[3, 5].item() == 42.0) == (nodes[world.rank] == nodes[-1])
    strategy.group.barrier()
    with torch.no_grad():
        weight[3, 5] = kept
    strategy.group.barrier()


def check_refused(strategy: Shared, model: Model) -> None:
    """A gradient of the last rank, or a sum alone, is not finite: nothing changes anywhere."""
    for bad, who in ((torch.nan, strategy.size - 1), (1.5e308, None)):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        strategy.group.barrier()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if who in (None, strategy.rank):
            model.weights[1].grad.fill_(bad)
        assert not strategy.update()
        assert all(map(torch.equal, model.parameters(), before))


def train(world: World, rule: OptimizerConfig, width: int) -> None:
    strategy, model = Shared(world), Model(world.rank, width)
    world.group.traffic = TrafficCounter()
    strategy.prepare(model, rule)
    check_same(world, list(model.parameters()))
    check_once_a_node(strategy, world, model.weights[0])
    expected = strategy.expected(1)
    for step in range(NUM_STEPS):
        strategy.clear_gradients()
        strategy.backward_and_reduce(model(inputs(step, strategy.rank)), 1 / 10)
        before = strategy.group.traffic.snapshot()
        assert strategy.update()
        moved = strategy.group.traffic - before
        counted = (moved.sent_bytes, moved.received_bytes)
        assert counted == (expected.sent_bytes, expected.received_bytes), (counted, expected)
    for found, wanted in zip(model.parameters(), truth(rule, world.size, width), strict=True):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-10), (rule, width)
    check_same(world, list(model.parameters()))
    states = [tensor for kept in strategy.optimizer.state.values() for tensor in kept.values()]
    check_same(world, [tensor.double() for tensor in states] or [torch.zeros(1)])
    check_refused(strategy, model)
    values = sum(parameter.numel() for parameter in model.parameters())
    kept = strategy.state_bytes()
    assert kept.parameters == values * 8 // world.local_size
    if world.rank == 0:
        print(f"{rule.name}, {width}: {strategy.collective}, {expected.traffic_formula}")
    strategy.close()


def main(link: str | None) -> None:
    given = Link.parse(link) if link else None
    for rule in RULES:
        train(World.create(timeout_s=60, link=given), rule, 100)
    train(World.create(timeout_s=60, link=given), RULES[2], 100_000)
    world = World.create(timeout_s=60, link=given)
    gathered = world.gather(np.ones(1))
    assert gathered is None or len(gathered) == world.size
    print(f"rank {world.rank} of {world.size} is done", flush=True)
    world.close()


try:
    main(sys.argv[1] if sys.argv[1:] else None)
except UserError as error:
    print(f"refused: {error}", flush=True)
