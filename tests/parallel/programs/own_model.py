"""Each rank: a model of one's own, with a frozen layer and batch norm, by every strategy that takes
any model. Its frozen parameters stay, and all ranks have the same buffers when it is evaluated.

Words: the strategies, between commas.
"""

import sys
from datetime import timedelta

import torch
from tests.parallel.stepping import make_step
from torch import Tensor, nn

from phalanx.comm.world import World
from phalanx.gradients.make_reducer import AllReduce
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.ddp import TorchReplicas
from phalanx.parallel.gloo import GlooGroup
from phalanx.parallel.local import Local
from phalanx.parallel.local_shards import full_tensor
from phalanx.parallel.mesh import Mesh
from phalanx.parallel.on_mesh import OnMesh
from phalanx.parallel.options import LocalOptions, MeshOptions, ServerOptions
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.server import Server
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import Batch
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import WorldGroup
from phalanx.parallel.zero import ZeroOne
from phalanx.torch_backend.store import open_store

RULE = OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.5)
STEPS, PER_RANK = 6, 5
NESTEROV = LocalOptions(local_steps=2, outer_optimizer="nesterov")


class Scale(nn.Module):
    """A buffer that no sample changes, of a type that no sum takes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.rand(12) > 0.2)
        self.register_buffer("scale", torch.rand(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.mask * self.scale


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(25, 12), nn.BatchNorm1d(12), Scale(), nn.ReLU(), nn.Linear(12, 10)
    )
    model[1].requires_grad_(False)
    return model


def batch(step: int, rank: int, size: int) -> Batch:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.rand(PER_RANK, 1, 5, 5, generator=generator) + rank  # not alike on all ranks
    targets = torch.randint(10, (PER_RANK,), generator=generator)
    return Batch(inputs, targets, PER_RANK, PER_RANK * size, step)


def make(name: str) -> Strategy:
    world = World.create(timeout_s=60)
    match name:
        case "shared":
            return Shared(world)
        case "local":
            return Local(world, NESTEROV)
        case "server":
            return Server(world, ServerOptions())
        case "zero":
            return ZeroOne(world)
        case "gloo":
            rank, size = world.rank, world.size
            store = open_store(world, timedelta(seconds=60))
            group = GlooGroup(rank=rank, size=size, local_rank=rank, store=store, timeout_s=60)
            return TorchReplicas(group, backend="gloo")
        case "replicas" | "zero 2" | "zero 3":
            return OnMesh(
                world,
                Mesh(dp=3) if name == "replicas" else Mesh(shard=3),
                MeshOptions(zero_stage=2 if name == "zero 2" else 3),
            )
        case _:
            summation = AllReduce(overlap="on" if name == "overlap" else "off")
            return Replicas(WorldGroup(world), summation=summation)


def state_of(strategy: Strategy) -> dict[str, Tensor]:
    """The full model, of which ranks may hold parts. Collective."""
    return {name: full_tensor(tensor) for name, tensor in strategy.model.state_dict().items()}


def run(name: str) -> None:
    strategy = make(name)
    assert strategy.group.exchange([strategy.rank]) == [[rank] for rank in range(strategy.size)]
    truth = {key: value.clone() for key, value in build(0).state_dict().items()}
    strategy.prepare(build(strategy.rank), RULE)
    before = state_of(strategy)
    for key, value in truth.items():
        assert torch.equal(before[key], value), f"{name}: {key} is not rank 0's"
    if strategy.role == "server":
        strategy.serve(STEPS)
    else:
        for step in range(STEPS):
            make_step(strategy, batch(step, strategy.data_rank, strategy.data_size))
    strategy.finish_epoch()
    own = strategy.model[2].running_mean.tolist()
    counts = strategy.group.gather([*own, float(strategy.role == "worker")])
    strategy.synchronize_buffers()
    after = state_of(strategy)
    for key in ("1.weight", "1.bias", "3.mask", "3.scale"):
        assert torch.equal(after[key], truth[key]), f"{name}: {key} has changed"
    assert not torch.equal(after["5.weight"], truth["5.weight"]), f"{name}: nothing was trained"
    flat = torch.cat([value.flatten().double() for value in after.values()])
    rows = strategy.group.gather(flat.tolist())
    if rows is not None and counts is not None:
        assert all(row == rows[0] for row in rows), f"{name}: ranks differ"
        table = torch.tensor([row[:-1] for row in counts if row[-1]])
        assert not torch.allclose(table[0], table[1]), "each had seen its own samples"
        expected = table[0] if name == "gloo" else table.mean(0)  # as DDP does
        assert torch.allclose(after["2.running_mean"], expected, atol=1e-6)
        print(f"{name} is right", flush=True)
    strategy.group.barrier()
    strategy.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1].split(","):
        run(name)
