"""Each rank: its stages of a pipeline, by every schedule, against the whole model in one process.

Words: backend, and for gloo a file through which the ranks meet.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from tests.parallel.stepping import CrossEntropy, cross_entropy_sum
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from phalanx.jobs.detect import detect
from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions
from phalanx.parallel.costs import step_traffic
from phalanx.parallel.pipeline.boundaries import Boundary, outputs_of
from phalanx.parallel.pipeline.chain import join_stages, layers_of, stage_of
from phalanx.parallel.pipeline.cutting import cut_evenly
from phalanx.parallel.pipeline.engine import Pipeline, summed
from phalanx.parallel.pipeline.layout import PipelineLayout, layout_of
from phalanx.parallel.pipeline.mesh_stage import MeshStage
from phalanx.parallel.pipeline.messages import TensorMessages
from phalanx.parallel.pipeline.orders import Action, orders_of
from phalanx.parallel.pipeline.pipelined import measured_costs
from phalanx.parallel.step import Batch, split_micro_batches

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


class Pieces:
    """The model of a truth in stages, of which this rank has its own."""

    def __init__(self, truth: Truth, layout: PipelineLayout) -> None:
        model = truth.make()
        layers = list(model)
        costs = [1.0 + number / 10 for number in range(len(layers))]
        has_parameters = [any(True for _ in layer.parameters()) for layer in layers]
        cut = cut_evenly(costs, has_parameters, layout.num_stages)
        inputs, _ = batch(0, truth.shape)
        outputs = outputs_of(layers, inputs)
        self.boundaries = [
            Boundary(tuple(inputs.shape[1:]), inputs.dtype),
            *(outputs[stage[-1]] for stage in cut),
        ]
        self.layout, self.rank, chain = layout, dist.get_rank(), layers_of(model)
        self.stages = {n: stage_of(chain, cut[n]) for n in layout.stages_of(self.rank)}
        self.whole = join_stages(list(self.stages.values()))

    def traffic(self, num_samples: int) -> int:
        inner = self.boundaries[1:-1]
        return step_traffic(self.layout, self.rank, [each.num_bytes(num_samples) for each in inner])

    def example(self, boundary: int, num_samples: int) -> Tensor:
        """The shape of what crosses a boundary; all but the samples have gradients."""
        return self.boundaries[boundary].of(num_samples, "meta").requires_grad_(boundary > 0)


def pipeline_of(
    layout: PipelineLayout, stages: Mapping[int, nn.Module], boundaries: Sequence[Boundary]
) -> Pipeline:
    return Pipeline(
        layout,
        dist.get_rank(),
        {number: MeshStage(stage) for number, stage in stages.items()},
        TensorMessages(layout, dist.group.WORLD, boundaries),
        loss_of=summed(CrossEntropy()),
    )


def micro_batches_of(inputs: Tensor, targets: Tensor, number: int) -> list[Batch | None]:
    """Some of which are left out where there are fewer samples."""
    whole = Batch(inputs, targets, len(inputs), targets.numel(), 0)
    found = split_micro_batches(whole, number)
    return [*found, *[None] * (number - len(found))]


def check(truth: Truth, layout: PipelineLayout) -> None:
    mine = Pieces(truth, layout)
    pipeline = pipeline_of(layout, mine.stages, mine.boundaries)
    optimizer = truth.optimizer(mine.whole)
    for step, (inputs, targets) in enumerate(batches(truth.shape)):
        optimizer.zero_grad()
        before = moved()
        micro_batches = micro_batches_of(inputs, targets, layout.micro_batches)
        result = pipeline.step(micro_batches, number=step)
        check_traffic(before, mine.traffic(len(inputs)), layout)
        check_actions(pipeline, step, [each is not None for each in micro_batches])
        assert (result.logits is None) != pipeline.is_last
        if pipeline.is_last:
            assert result.logits.shape == (*targets.shape, truth.shape.num_classes)
            assert abs(result.loss_sum - truth.losses[step]) < TOLERANCE
        else:
            assert result.loss_sum == 0
        optimizer.step()
    whole = dict(truth.model.named_parameters())
    for name, parameter in mine.whole.named_parameters():
        close(parameter, whole[name], f"{layout}: {name}")
    check_prediction(pipeline, truth)


def check_against_torch(truth: Truth, layout: PipelineLayout) -> None:
    """The gradients of one batch have the bits that PyTorch's own engine gives them."""
    ours, theirs = Pieces(truth, layout), Pieces(truth, layout)
    size = layout.micro_batches * 2
    inputs, targets = batch(5, truth.shape, size)
    pipeline = pipeline_of(layout, ours.stages, ours.boundaries)
    pipeline.step(micro_batches_of(inputs, targets, layout.micro_batches))
    run_by_torch(theirs, inputs, targets)
    for (name, own), other in zip(
        ours.whole.named_parameters(), theirs.whole.parameters(), strict=True
    ):
        assert own.grad is not None
        assert torch.equal(own.grad, other.grad), f"{layout}: {name}"


def run_by_torch(pieces: Pieces, inputs: Tensor, targets: Tensor) -> None:
    layout, number = pieces.layout, pieces.layout.micro_batches
    stages = [
        PipelineStage(
            module,
            stage,
            layout.num_stages,
            torch.device("cpu"),
            input_args=pieces.example(stage, 2),
            output_args=pieces.example(stage + 1, 2),
        )
        for stage, module in pieces.stages.items()
    ]

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        return cross_entropy_sum(outputs, wanted) * (1 / targets.numel())

    kind = {
        ("gpipe", False): ScheduleGPipe,
        ("1f1b", False): Schedule1F1B,
        ("interleaved", False): ScheduleInterleaved1F1B,
        ("zero-bubble", False): ScheduleInterleavedZeroBubble,
        ("zero-bubble", True): ScheduleZBVZeroBubble,
    }[layout.schedule, layout.is_v]
    given = stages[0] if layout.schedule in ("gpipe", "1f1b") else stages
    schedule = kind(given, number, loss_fn=loss, scale_grads=False)
    is_last = layout.last_rank == pieces.rank
    schedule.step(*((inputs,) if pieces.rank == 0 else ()), target=targets if is_last else None)


def close(got: Tensor, expected: Tensor, text: str) -> None:
    farthest = (got - expected).abs().max().item()
    assert farthest < TOLERANCE, f"{text} is {farthest:.1e} away from the truth"


def check_prediction(pipeline: Pipeline, truth: Truth) -> None:
    """Of more samples than a step takes, and of fewer than there are ranks."""
    for size in (3 * BATCH + 1, 1):
        inputs, _ = batch(77, truth.shape, size)
        logits = pipeline.predict(inputs, 3)
        assert (logits is None) != pipeline.is_last
        if logits is not None:
            close(logits, truth.model(inputs), f"{pipeline.layout}: the logits")


def check_actions(pipeline: Pipeline, step: int, is_there: Sequence[bool]) -> None:
    """What ran is what is drawn, one after the other."""
    actions = pipeline.actions()
    ran = [Action(a.kind, a.stage, a.micro_batch) for a in actions]
    order = orders_of(pipeline.layout)[dist.get_rank()]
    assert ran == [action for action in order if is_there[action.micro_batch]], pipeline.layout
    assert {a.step for a in actions} == {step}
    times = [time for a in actions for time in (a.began_s, a.ended_s)]
    assert times == sorted(times)


def moved() -> tuple[int, int] | None:
    """Backend mpi counts (PHALANX_COUNT=1), gloo does not."""
    if dist.get_backend() == "gloo":
        return None
    traffic = dist.group.WORLD.traffic
    return traffic.sent_bytes, traffic.received_bytes


def check_traffic(before: tuple[int, int] | None, expected: int, layout: PipelineLayout) -> None:
    """Counted = formula."""
    after = moved()
    if before is not None and after is not None:
        counted = (after[0] - before[0], after[1] - before[1])
        assert counted == (expected, expected), f"{layout}: {counted}"


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
        check_against_torch(for_gpt, layout)
    if size == 2:
        for schedule in ("interleaved", "zero-bubble"):
            check(Truth(gpt, sgd), layout_of(schedule, num_ranks=2, stages_per_rank=3))
    if size < 4:
        for schedule in ("gpipe", "1f1b"):
            check(Truth(mlp, sgd), layout_of(schedule, num_ranks=size))


def check_costs() -> None:
    """Dearer where there is more to do, and no gradient is left behind."""
    model = mlp()
    inputs, _ = batch(0, IMAGES)
    costs = torch.tensor(measured_costs(list(model), inputs), dtype=torch.float64)
    assert len(costs) == 6
    assert (costs > 0).all()
    assert all(parameter.grad is None for parameter in model.parameters())


def check_wrong_samples() -> None:
    """Said by every rank, before anything is sent."""
    size = dist.get_world_size()
    layout = layout_of("gpipe", num_ranks=size, micro_batches=2)
    boundaries = [Boundary((3,), torch.float64)] * size
    pipeline = pipeline_of(layout, {dist.get_rank(): nn.Linear(3, 3).double()}, boundaries)
    targets = torch.zeros(4, dtype=torch.int64)
    for inputs in (torch.zeros(4, 2).double(), torch.zeros(4, 3)):
        try:
            pipeline.step(micro_batches_of(inputs, targets, 2))
        except ValueError as error:
            assert "samples of (3,), torch.float64, but got" in str(error), error
        else:
            raise AssertionError(inputs.shape)


def check_bubble() -> None:
    """Work that takes a while, on all ranks: 1 − the busy share is near the schedule's."""
    size = dist.get_world_size()
    layout = layout_of("gpipe", num_ranks=size, micro_batches=4)
    boundaries = [Boundary((3,), torch.float64)] * size
    pipeline = pipeline_of(layout, {dist.get_rank(): Slow()}, boundaries)
    inputs, targets = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    pipeline.step(micro_batches_of(inputs, targets, 4))
    pipeline.step(micro_batches_of(inputs, targets, 4))
    everybody: list[list] = [[] for _ in range(size)]
    dist.all_gather_object(everybody, list(pipeline.actions()))
    times = [time for actions in everybody for a in actions for time in (a.began_s, a.ended_s)]
    for actions in everybody:
        bubble = 1 - sum(a.ended_s - a.began_s for a in actions) / (max(times) - min(times))
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
