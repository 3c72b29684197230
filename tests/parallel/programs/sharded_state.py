"""Each rank: optimizer state that ranks divide changes no bit, whatever sums the gradients."""

import copy

import torch
from tests.parallel.stepping import make_step
from torch import nn

from phalanx.comm.link import Link
from phalanx.comm.world import World
from phalanx.gradients.make_reducer import AllReduce
from phalanx.parallel.parameter_memory import NodeMemory, ParameterMemory
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.sharded_state import ShardedState
from phalanx.parallel.step import Batch, StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import WorldGroup

STEPS, SAMPLES = 4, 6
LINK = Link(bandwidth_bytes_per_s=1e10, latency_s=0.0)
"""With one, ranks share no memory."""
WAYS = (AllReduce(), AllReduce(overlap="on", bucket_bytes=300), AllReduce(method="ring"))


def group(link: Link | None = None) -> WorldGroup:
    return WorldGroup(World.create(timeout_s=30, link=link))


def trained(strategy: Strategy) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3))
    strategy.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05))
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + strategy.rank)
        inputs = torch.randn(SAMPLES, 5, generator=generator)
        targets = torch.randint(3, (SAMPLES,), generator=generator)
        batch = Batch(inputs, targets, SAMPLES, SAMPLES * strategy.size, step)
        assert make_step(strategy, batch).grad_norm is not None
    owned = len(strategy.optimizer_state())
    is_divided = isinstance(strategy, ShardedState) and strategy.size > 1
    assert owned < len(list(model.parameters())) or not is_divided
    strategy.close()
    return [parameter.detach().clone() for parameter in model.parameters()]


def main() -> None:
    step, rank = StepOptions(clip_norm=0.1), 0
    for link in (None, LINK):
        for summation in map(copy.copy, WAYS):
            whole = trained(Replicas(group(link), step, summation=summation))
            for memory in (ParameterMemory, NodeMemory) if link is None else (ParameterMemory,):
                ranks = group(link)
                rank = ranks.rank
                state = ShardedState(ranks, step, memory=memory, summation=summation)
                for found, wanted in zip(trained(state), whole, strict=True):
                    assert torch.equal(found, wanted), (summation, memory.name)
    print(f"rank {rank} is done", flush=True)


main()
