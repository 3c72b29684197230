"""Each rank: its stages of a pipeline, by every schedule, against the whole model in one process.

Words: backend, and for gloo a file through which the ranks meet.
"""

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.launch.detect import detect
from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions
from phalanx.parallel.pipeline.boundaries import Boundary, outputs_of
from phalanx.parallel.pipeline.bubble import measured_bubble
from phalanx.parallel.pipeline.chain import join_stages, layers_of, stage_of
from phalanx.parallel.pipeline.costing import shared_costs
from phalanx.parallel.pipeline.cutting import cut_evenly
from phalanx.parallel.pipeline.engine import Pipeline
from phalanx.parallel.pipeline.layout import PipelineLayout, layout_of
from phalanx.parallel.pipeline.orders import Action, orders_of
from phalanx.parallel.step import cross_entropy_sum

NUM_STEPS = 12
BATCH, SMALL = 13, 2  # neither a number of ranks nor one of micro-batches divides 13
TOLERANCE = 1e-9
TEXT = DataShape(inputs=(6,), num_classes=11)
IMAGES = DataShape(inputs=(1, 4, 4), num_classes=10)
Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=0.01)


def gpt() -> nn.Sequential:
    """As many layers as the four ranks have stages, and one more."""
    options = ModelOptions(width=8, layers=6, heads=2)
    return build_model("gpt", seed=3, dtype=torch.float64, options=options, shape=TEXT)


def mlp() -> nn.Sequential:
    options = ModelOptions(width=12)
    return build_model("mlp", seed=3, dtype=torch.float64, options=options, shape=IMAGES)


def batch(step: int, shape: DataShape, size: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    if not shape.is_text:
        inputs = torch.rand(size, *shape.inputs, generator=generator, dtype=torch.float64)
        return inputs, torch.randint(shape.num_classes, (size,), generator=generator)
    tokens = torch.randint(shape.num_classes, (2, size, *shape.inputs), generator=generator)
    return tokens[0], tokens[1]


def batches(shape: DataShape) -> list[tuple[Tensor, Tensor]]:
    """The last has fewer samples than there are micro-batches."""
    sizes = [BATCH] * (NUM_STEPS - 1) + [SMALL]
    return [batch(step, shape, size) for step, size in enumerate(sizes)]


class Truth:
    """What one process trains, once for a model and optimizer."""

    def __init__(self, make: Callable[[], nn.Sequential], optimizer: Optimizer) -> None:
        self.make, self.optimizer = make, optimizer
        self.shape = TEXT if make is gpt else IMAGES
        self.model = make()
        self.losses: list[float] = []
        updates = optimizer(self.model)
        for inputs, targets in batches(self.shape):
            updates.zero_grad()
            loss = cross_entropy_sum(self.model(inputs), targets)
            (loss / targets.numel()).backward()
            updates.step()
            self.losses.append(loss.item())


def check(truth: Truth, layout: PipelineLayout) -> None:
    model = truth.make()
    layers = list(model)
    costs = [1.0 + number / 10 for number in range(len(layers))]
    cut = cut_evenly(costs, [any(True for _ in x.parameters()) for x in layers], layout.num_stages)
    inputs, _ = batch(0, truth.shape)
    outputs = outputs_of(layers, inputs)
    ends = [outputs[stage[-1]] for stage in cut]
    chain, rank = layers_of(model), dist.get_rank()
    stages = {number: stage_of(chain, cut[number]) for number in layout.stages_of(rank)}
    mine = join_stages(list(stages.values()))
    pipeline = Pipeline(
        layout,
        stages,
        [Boundary(tuple(inputs.shape[1:]), inputs.dtype), *ends],
        micro_batch_size=-(-BATCH // layout.micro_batches),
        group=dist.group.WORLD,
    )
    optimizer = truth.optimizer(mine)
    for step, (inputs, targets) in enumerate(batches(truth.shape)):
        optimizer.zero_grad()
        before = moved()
        result = pipeline.step(inputs, targets, 1 / targets.numel(), number=step)
        if step > 0:  # the first also finds out that all stages know their shapes
            check_traffic(before, pipeline)
        check_actions(pipeline, step)
        assert (result.logits is None) != pipeline.is_last
        if pipeline.is_last:
            assert result.logits.shape == (*targets.shape, truth.shape.num_classes)
            assert abs(result.loss_sum - truth.losses[step]) < TOLERANCE
        else:
            assert result.loss_sum == 0
        optimizer.step()
    whole = dict(truth.model.named_parameters())
    for name, parameter in mine.named_parameters():
        close(parameter, whole[name], f"{layout}: {name}")
    check_prediction(pipeline, truth)


def close(got: Tensor, expected: Tensor, text: str) -> None:
    farthest = (got - expected).abs().max().item()
    assert farthest < TOLERANCE, f"{text} is {farthest:.1e} away from the truth"


def check_prediction(pipeline: Pipeline, truth: Truth) -> None:
    """Of more samples than a step takes, and of fewer than there are ranks."""
    for size in (3 * BATCH + 1, 1):
        inputs, _ = batch(77, truth.shape, size)
        logits = pipeline.predict(inputs)
        assert (logits is None) != pipeline.is_last
        if logits is not None:
            close(logits, truth.model(inputs), f"{pipeline.layout}: the logits")


def check_actions(pipeline: Pipeline, step: int) -> None:
    """What ran is what is drawn, one after the other."""
    actions = pipeline.actions()
    ran = [Action(a.kind, a.stage, a.micro_batch) for a in actions]
    assert ran == orders_of(pipeline.layout)[dist.get_rank()], pipeline.layout
    assert {a.step for a in actions} == {step}
    times = [time for a in actions for time in (a.began_s, a.ended_s)]
    assert times == sorted(times)


def moved() -> tuple[int, int] | None:
    """Backend mpi counts (PHALANX_COUNT=1), gloo does not."""
    if dist.get_backend() == "gloo":
        return None
    traffic = dist.group.WORLD.traffic
    return traffic.sent_bytes, traffic.received_bytes


def check_traffic(before: tuple[int, int] | None, pipeline: Pipeline) -> None:
    """Counted = formula."""
    after = moved()
    if before is not None and after is not None:
        counted = (after[0] - before[0], after[1] - before[1])
        assert counted == (pipeline.traffic(),) * 2, f"{pipeline.layout}: {counted}"


def check_schedules() -> None:
    size = dist.get_world_size()
    for_gpt = Truth(gpt, adam)
    for schedule, micro_batches, stages_per_rank in (
        ("gpipe", 5, 1),
        ("1f1b", size + 3, 1),
        ("interleaved", 2 * size, 2),
        ("zero-bubble", 2 * size, 1),
        ("zero-bubble", size + 1, 2),
    ):
        layout = layout_of(
            schedule,
            num_ranks=size,
            micro_batches=micro_batches,
            stages_per_rank=stages_per_rank,
        )
        check(for_gpt, layout)
    if size == 2:
        for schedule in ("interleaved", "zero-bubble"):
            check(Truth(gpt, sgd), layout_of(schedule, num_ranks=2, stages_per_rank=3))
    if size < 4:
        for schedule in ("gpipe", "1f1b"):
            check(Truth(mlp, sgd), layout_of(schedule, num_ranks=size))


def check_costs() -> None:
    """The same on all ranks, dearer where there is more to do, and no gradient is left behind."""
    model = mlp()
    inputs, _ = batch(0, IMAGES)
    costs = torch.tensor(shared_costs(list(model), inputs), dtype=torch.float64)
    everywhere = [torch.empty_like(costs) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, costs)
    assert all(torch.equal(theirs, costs) for theirs in everywhere)
    assert len(costs) == 6
    assert (costs > 0).all()
    assert all(parameter.grad is None for parameter in model.parameters())


def check_wrong_samples() -> None:
    """Said by every rank, before anything is sent."""
    size = dist.get_world_size()
    layout = layout_of("gpipe", num_ranks=size, micro_batches=2)
    layers = [nn.Linear(3, 3).double() for _ in range(size)]
    boundaries = [Boundary((3,), torch.float64)] * (size + 1)
    stages = {dist.get_rank(): layers[dist.get_rank()]}
    group = dist.group.WORLD
    pipeline = Pipeline(layout, stages, boundaries, micro_batch_size=2, group=group)
    targets = torch.zeros(5, dtype=torch.int64)
    for shape, text in (((5, 3), "1 to 4 samples"), ((4, 2), r"samples of (3,)")):
        try:
            pipeline.step(torch.zeros(shape, dtype=torch.float64), targets[: shape[0]], 1.0)
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(shape)


def check_bubble() -> None:
    """Work that takes a while, on all ranks: 1 − the busy share is near the schedule's."""
    size = dist.get_world_size()
    layout = layout_of("gpipe", num_ranks=size, micro_batches=4)
    boundaries = [Boundary((3,), torch.float64)] * (size + 1)
    stages = {dist.get_rank(): Slow()}
    group = dist.group.WORLD
    pipeline = Pipeline(layout, stages, boundaries, micro_batch_size=1, group=group)
    inputs, targets = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    pipeline.step(inputs, targets, 1.0)
    pipeline.step(inputs, targets, 1.0)
    everybody: list[list] = [[] for _ in range(size)]
    dist.all_gather_object(everybody, list(pipeline.actions()))
    for bubble in measured_bubble(everybody):
        ideal = (size - 1) / (4 + size - 1)
        assert ideal - 0.15 < bubble < 0.95, (bubble, ideal)


class Slow(nn.Module):
    """Sleeps forward and has next to nothing to do backward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, given: Tensor) -> Tensor:
        time.sleep(0.02)
        return given * self.weight


CHECKS = [function for name, function in globals().items() if name.startswith("check_")]
CHECKS = [check for check in CHECKS if check.__code__.co_argcount == 0]


def main(backend: str, meeting: str | None = None) -> None:
    torch.set_num_threads(1)
    if backend == "gloo":
        launched = detect(os.environ)
        assert launched is not None
        assert meeting is not None
        size = launched.world_size
        store = dist.FileStore(meeting, size)
        dist.init_process_group("gloo", store=store, rank=launched.rank, world_size=size)
    else:
        dist.init_process_group(backend)
    for function in CHECKS:
        began = time.perf_counter()
        function()
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"{function.__name__}: {time.perf_counter() - began:.2f} s", flush=True)
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
