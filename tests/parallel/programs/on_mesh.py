"""Each rank: on every mesh of these ranks, train the MLP and the GPT and compare every parameter,
whole, with those of one process. One job, one mesh after the other.

Words: backend, then any of `sgd`, `accumulate`, `stage2`, `sequence`, and a mesh to do only that.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tests.parallel.stepping import make_step
from torch import Tensor, nn

from phalanx.comm.layout import share_of
from phalanx.comm.world import World
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelName, ModelOptions
from phalanx.parallel.local_shards import full_tensor
from phalanx.parallel.mesh import Mesh, parse_mesh
from phalanx.parallel.on_mesh import OnMesh
from phalanx.parallel.options import MeshOptions
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import IGNORED, Batch, StepOptions
from phalanx.parallel.strategy import Strategy

SIZES = (11, 11, 7, 2)  # of batches, again and again; two samples: fewer than ranks
STEPS = 5
ADAM = OptimizerConfig(name="adam", learning_rate=1e-2, weight_decay=0.01)
SGD = OptimizerConfig(name="sgd", learning_rate=0.05, momentum=0.9)


@dataclass(frozen=True, kw_only=True)
class Case:
    model: ModelName
    options: ModelOptions
    shape: DataShape

    def build(self, seed: int) -> nn.Module:
        return build_model(
            self.model, seed=seed, dtype=torch.float64, options=self.options, shape=self.shape
        )

    def batch(self, step: int, part: int, parts: int) -> Batch:
        """What one of `parts` data ranks sees of the global batch."""
        generator = torch.Generator().manual_seed(step)
        size = SIZES[step % len(SIZES)]
        if self.shape.is_text:
            inputs = torch.randint(
                self.shape.num_classes, (size, *self.shape.inputs), generator=generator
            )
            targets = inputs.roll(-1, 1)
        else:
            inputs = torch.rand(size, *self.shape.inputs, generator=generator, dtype=torch.float64)
            targets = torch.randint(self.shape.num_classes, (size,), generator=generator)
        share = share_of(part, parts, size)
        mine = slice(share.start, share.stop) if len(share) else slice(0, 1)
        targets = targets[mine] if len(share) else torch.full_like(targets[:1], IGNORED)
        return Batch(inputs[mine], targets, len(share), size * self.shape.targets_per_sample, step)


def cases(ranks: int) -> list[Case]:
    heads = 24 if ranks == 8 else 12
    text = DataShape(inputs=(12 if ranks < 8 else 16,), num_classes=13)
    gpt = ModelOptions(width=2 * heads, layers=1, heads=heads)
    return [
        Case(model="mlp", options=ModelOptions(width=24), shape=DataShape(inputs=(1, 5, 5))),
        Case(model="gpt", options=gpt, shape=text),
    ]


def meshes(ranks: int) -> Iterator[Mesh]:
    """Every way to write `ranks` as a product of three axes."""
    for dp in range(1, ranks + 1):
        for shard in range(1, ranks // dp + 1):
            if ranks % (dp * shard) == 0:
                yield Mesh(dp=dp, shard=shard, tp=ranks // (dp * shard))


def trained(strategy: Strategy, case: Case, rule: OptimizerConfig, seed: int) -> dict[str, Tensor]:
    strategy.prepare(case.build(seed), rule)
    for step in range(STEPS):
        batch = case.batch(step, strategy.data_rank, strategy.data_size)
        before = moved_so_far(strategy)
        result = make_step(strategy, batch)
        check_traffic(strategy, before, SIZES[step % len(SIZES)])
        if strategy.counts_samples and batch.num_samples:
            assert result.logits is not None and result.loss_sum > 0
            assert len(result.logits) >= batch.num_samples
    assert_memory(strategy)
    return {
        name: full_tensor(parameter).clone()
        for name, parameter in strategy.model.named_parameters()
    }


def assert_memory(strategy: Strategy) -> None:
    """What is kept is what the formula says, the padding of shards and 8 bytes a parameter for
    counts of steps aside: no whole copy of what has been cut is left."""
    expected, kept = strategy.expected(1), sum(strategy.state_bytes())
    if expected is not None and expected.state_bytes is not None:
        number = len(list(strategy.model.parameters()))
        surplus = kept - expected.state_bytes
        assert -0.1 * expected.state_bytes <= surplus <= 8 * number, (
            f"{kept} bytes, not {expected.state_bytes}"
        )


def moved_so_far(strategy: Strategy) -> tuple[int, int] | None:
    """Bytes sent and received; gloo does not count."""
    traffic = strategy.group.traffic
    return None if traffic is None else (traffic.sent_bytes, traffic.received_bytes)


def check_traffic(strategy: Strategy, before: tuple[int, int] | None, batch_size: int) -> None:
    """The step has moved what the formulas say, to the byte; gloo does not count."""
    after, expected = moved_so_far(strategy), strategy.expected(batch_size)
    if after is not None and before is not None and expected is not None:
        moved = (after[0] - before[0], after[1] - before[1])
        said = (expected.sent_bytes, expected.received_bytes)
        assert moved == said, f"{moved} bytes, not {said}: {expected.traffic_formula}"


def compare(found: dict[str, Tensor], truth: dict[str, Tensor], text: str) -> None:
    assert found.keys() == truth.keys(), f"{text}: {sorted(found)}, not {sorted(truth)}"
    for name, expected in truth.items():
        assert found[name].shape == expected.shape, f"{text}: {name}"
        farthest = (found[name] - expected).abs().max().item()
        assert farthest < 1e-9, f"{text}: {name} is {farthest:.1e} away from the truth"


def main(backend: str, *words: str) -> None:
    torch.set_num_threads(1)
    world = World.create(timeout_s=30)
    rank, size = world.rank, world.size
    world.close()
    rule = SGD if "sgd" in words else ADAM
    chosen = [parse_mesh(word) for word in words if "=" in word] or list(meshes(size))
    for case in cases(size):
        truth = trained(Replicas(RunGroup()), case, rule, seed=3)
        for mesh in chosen:
            began = time.perf_counter()
            strategy = OnMesh(
                World.create(timeout_s=30),
                mesh,
                MeshOptions(
                    backend="gloo" if backend == "gloo" else "mpi",
                    zero_stage=2 if "stage2" in words else 3,
                    sequence_parallel="sequence" in words and case.model == "gpt",
                ),
                step_options=StepOptions(accumulate=3 if "accumulate" in words else 1),
            )
            found = trained(strategy, case, rule, seed=3 + rank)
            compare(found, truth, f"{case.model} on {mesh}, rank {rank}")
            strategy.close()
            if rank == 0:
                print(f"{case.model} on {mesh}: {time.perf_counter() - began:.2f} s", flush=True)
    print(f"\nrank {rank} of {size} is done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
