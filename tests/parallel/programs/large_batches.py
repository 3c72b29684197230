"""Each rank: every way to split the work trains with LARS, LAMB, clipping, smoothed labels and a
step that is skipped as one process does, parameter by parameter.

Words: the folder in which ranks of gloo meet.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from on_mesh import Case, cases, compare
from tests.parallel.stepping import CrossEntropy, make_step
from torch import Tensor

from phalanx.comm.world import World
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.models.options import ModelOptions
from phalanx.parallel.ddp import TorchReplicas
from phalanx.parallel.gloo import GlooGroup
from phalanx.parallel.local import Local
from phalanx.parallel.local_shards import full_tensor
from phalanx.parallel.mesh import Mesh
from phalanx.parallel.on_mesh import OnMesh
from phalanx.parallel.options import LocalOptions, ServerOptions
from phalanx.parallel.pipeline.layout import layout_of
from phalanx.parallel.pipeline.staged import Staged
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.server import Server
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import Batch, StepOptions
from phalanx.parallel.strategy import Strategy
from phalanx.parallel.world_group import WorldGroup
from phalanx.parallel.zero import ZeroOne

STEPS = 8  # of on_mesh's, whose fourth has two samples alone
BAD_STEP = 5


@dataclass(frozen=True, kw_only=True)
class Learning:
    rule: OptimizerConfig
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    has_bad_step: bool = False

    @property
    def step_options(self) -> StepOptions:
        return StepOptions(clip_norm=self.clip_norm, skips_nonfinite=True)


LARS = Learning(
    rule=OptimizerConfig(
        name="lars", learning_rate=0.5, momentum=0.9, weight_decay=0.01, trust_coefficient=0.05
    ),
    label_smoothing=0.1,
)
LAMB = Learning(
    rule=OptimizerConfig(name="lamb", learning_rate=0.02, weight_decay=0.01, epsilon=1e-6),
    clip_norm=0.3,
)
CLIPPED = Learning(
    rule=OptimizerConfig(name="sgd", learning_rate=0.5, momentum=0.9),
    clip_norm=0.3,
    has_bad_step=True,
)
SMOOTHED = Learning(
    rule=OptimizerConfig(name="adam", learning_rate=0.01), label_smoothing=0.1, has_bad_step=True
)
ALL = {"lars": LARS, "lamb": LAMB, "clipped": CLIPPED, "smoothed": SMOOTHED}


def trained(strategy: Strategy, case: Case, learning: Learning, seed: int) -> dict[str, Tensor]:
    """Closes nothing. A bad step has a sample that is not finite, the last one of its batch."""
    strategy.loss = CrossEntropy(learning.label_smoothing)
    strategy.prepare(case.build(seed), learning.rule)
    if strategy.role == "server":
        strategy.serve(STEPS)
    else:
        skipped = [step for step in range(STEPS) if is_skipped(strategy, case, learning, step)]
        assert skipped == [BAD_STEP] * learning.has_bad_step or isinstance(strategy, Server)
    strategy.finish_epoch()
    return {
        name: full_tensor(parameter).clone()
        for name, parameter in strategy.model.named_parameters()
    }


def is_skipped(strategy: Strategy, case: Case, learning: Learning, step: int) -> bool:
    batch = case.batch(step, strategy.data_rank, strategy.data_size)
    if learning.has_bad_step and step == BAD_STEP and strategy.data_rank == strategy.data_size - 1:
        batch = spoiled(batch)
    result = make_step(strategy, batch, CrossEntropy(learning.label_smoothing))
    if result.is_skipped:
        start = f"step {step}: gradients are not finite"
        assert result.why_skipped.startswith((f"{start}: the loss of rank", f"{start} on rank"))
    return result.is_skipped


def spoiled(batch: Batch) -> Batch:
    inputs = batch.inputs.clone()
    inputs[-1, 0, 0, 0] = torch.nan
    return batch._replace(inputs=inputs)


def world() -> World:
    return World.create(timeout_s=30)


def meshed(mesh: Mesh, case: Case, step: StepOptions) -> Strategy:
    if mesh.pp == 1:
        return OnMesh(world(), mesh, step_options=step)
    return Staged(
        world(),
        mesh,
        layout=layout_of("1f1b", num_ranks=mesh.pp),
        global_batch_size=11,
        step_options=step,
    )


def meshes(ranks: int) -> list[Mesh]:
    made = [Mesh(shard=ranks), Mesh(tp=ranks), Mesh(pp=ranks)]
    return [*made, Mesh(shard=2, tp=2), Mesh(dp=2, pp=2)] if ranks == 4 else made


def strategies(
    ranks: int, learning: Learning, case: Case, store: dist.Store
) -> dict[str, Callable[[], Strategy]]:
    probe = World.create(timeout_s=30)
    rank = probe.rank
    probe.close()
    step = learning.step_options
    made: dict[str, Callable[[], Strategy]] = {
        f"mesh {mesh}": (lambda mesh=mesh: meshed(mesh, case, step))
        for mesh in meshes(ranks)
        if case.model == "gpt" or mesh.pp <= 3  # the MLP has three layers
    }
    if case.model == "gpt":
        return made
    made["zero"] = lambda: ZeroOne(world(), step_options=step)
    made["mpi"] = lambda: Replicas(WorldGroup(world()), step)
    made["gloo"] = lambda: TorchReplicas(
        GlooGroup(rank=rank, size=ranks, local_rank=rank, store=store, timeout_s=30),
        backend="gloo",
        step_options=step,
    )
    if learning is SMOOTHED:
        made["shared"] = lambda: Shared(world(), step_options=step)
        made["server"] = lambda: Server(world(), ServerOptions(), step_options=step)
    return made


def check_bad_steps_of_local(case: Case) -> None:
    """A rank that trains by itself skips by itself."""
    step = StepOptions(skips_nonfinite=True)
    strategy = Local(world(), LocalOptions(local_steps=3), step_options=step)
    strategy.prepare(case.build(3), SMOOTHED.rule)
    skipped = [step for step in range(STEPS) if is_skipped(strategy, case, SMOOTHED, step)]
    assert skipped == [BAD_STEP] * (strategy.rank == strategy.size - 1)
    strategy.finish_epoch()
    assert all(bool(p.isfinite().all()) for p in strategy.model.parameters())
    strategy.close()


def main(folder: str) -> None:
    torch.set_num_threads(1)
    probe = world()
    rank, size = probe.rank, probe.size
    probe.close()
    mlp, gpt = cases(size)
    stages = ModelOptions(width=24, layers=size, heads=12)
    gpt = Case(model=gpt.model, options=stages, shape=gpt.shape)
    for case in (mlp, gpt):
        for name, learning in ALL.items():
            if case is gpt and learning is not LAMB:
                continue
            truth = trained(Replicas(RunGroup(), learning.step_options), case, learning, seed=3)
            path = str(Path(folder) / f"{case.model}-{name}")
            made = strategies(size, learning, case, dist.FileStore(path, size))
            for words, make in made.items():
                began = time.perf_counter()
                strategy = make()
                found = trained(strategy, case, learning, seed=3 + rank)
                own = {key: value for key, value in truth.items() if key in found}
                assert own if "pp" in words else own.keys() == truth.keys()
                compare(found, own, f"{case.model}, {name}, {words}, rank {rank}")
                strategy.close()
                if rank == 0:
                    seconds = time.perf_counter() - began
                    print(f"{case.model}, {name}, {words}: {seconds:.2f} s", flush=True)
    check_bad_steps_of_local(mlp)
    print(f"\nrank {rank} of {size} is done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
