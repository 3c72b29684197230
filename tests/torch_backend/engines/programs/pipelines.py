"""Each rank: a stage, or several, of torch.distributed.pipelining; against the whole model."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import truth
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)
from torch.nn.parallel import DistributedDataParallel

NUM_MICRO_BATCHES = 12
WIDTH = 10


def layers(num_stages: int) -> nn.ModuleList:
    """One for each stage, the same weights on every rank."""
    torch.manual_seed(17)
    made = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(num_stages)]
    return nn.ModuleList(made).double()


def batch(step: int) -> truth.Batch:
    generator = torch.Generator().manual_seed(step)
    shape = (2, truth.GLOBAL_BATCH_SIZE, WIDTH)
    inputs, targets = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs, targets


def trained(num_stages: int) -> nn.ModuleList:
    model = layers(num_stages)
    truth.train(
        nn.Sequential(*model), truth.sgd(model.parameters()), map(batch, range(truth.NUM_STEPS))
    )
    return model


def staged(
    numbers: Sequence[int],
    num_stages: int,
    kind: type,
    group: dist.ProcessGroup | None = None,
    batches: Sequence[truth.Batch] | None = None,
) -> nn.ModuleList:
    """The stages with `numbers` are this rank's; all are returned, those of others untrained."""
    everything = layers(num_stages)
    mine = nn.ModuleList([everything[number] for number in numbers])
    stages = [
        PipelineStage(everything[number], number, num_stages, torch.device("cpu"), group=group)
        for number in numbers
    ]
    several = kind not in (ScheduleGPipe, Schedule1F1B)
    schedule = kind(
        stages if several else stages[0], NUM_MICRO_BATCHES, loss_fn=nn.functional.mse_loss
    )
    optimizer = truth.sgd(mine.parameters())
    for inputs, targets in batches or [batch(step) for step in range(truth.NUM_STEPS)]:
        optimizer.zero_grad()
        given = (inputs,) if 0 in numbers else ()
        losses: list[Tensor] = []
        if num_stages - 1 in numbers:
            schedule.step(*given, target=targets, losses=losses)
            assert len(losses) == NUM_MICRO_BATCHES
        else:
            schedule.step(*given)
        optimizer.step()
    return everything


def same(mine: nn.ModuleList, expected: nn.ModuleList, numbers: Sequence[int], text: str) -> None:
    for number in numbers:
        for one, other in zip(
            mine[number].parameters(), expected[number].parameters(), strict=True
        ):
            truth.close(one, other, f"{text}, stage {number}")


def check_one_stage_a_rank() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for kind in (ScheduleGPipe, Schedule1F1B):
        same(staged([rank], size, kind), trained(size), [rank], kind.__name__)


def check_several_stages_a_rank() -> None:
    """Stages in a loop, and in the shape of a V: down the ranks and back up."""
    rank, size = dist.get_rank(), dist.get_world_size()
    num_stages = 2 * size
    loop, v = [rank, rank + size], [rank, num_stages - 1 - rank]
    for kind, numbers in (
        (ScheduleInterleaved1F1B, loop),
        (ScheduleLoopedBFS, loop),
        (ScheduleInterleavedZeroBubble, loop),
        (ScheduleZBVZeroBubble, v),
        (ScheduleDualPipeV, v),
    ):
        same(staged(numbers, num_stages, kind), trained(num_stages), numbers, kind.__name__)


def check_traced() -> None:
    """A model that PyTorch cuts into stages by itself."""
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs, targets = batch(0)
    model = nn.Sequential(*layers(size))
    splits = {str(number): SplitPoint.BEGINNING for number in range(1, size)}
    pipe = pipeline(model, (inputs.chunk(NUM_MICRO_BATCHES)[0],), split_spec=splits)
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, NUM_MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    given = (inputs,) if rank == 0 else ()
    if rank == size - 1:
        output = schedule.step(*given, target=targets)
        truth.close(output, nn.Sequential(*layers(size))(inputs), "output")
    else:
        schedule.step(*given)
    expected = nn.Sequential(*layers(size))
    truth.loss_of(expected, (inputs, targets)).backward()
    gradients = [parameter.grad for parameter in stage.submod.parameters()]
    for got, parameter in zip(gradients, expected[rank].parameters(), strict=True):
        truth.close(got, parameter.grad, "gradient")


def check_with_data_parallelism() -> None:
    """2 × 2 ranks: two pipelines of two stages, whose gradients DDP averages."""
    size = dist.get_world_size()
    if size != 4:
        return
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    number = mesh.get_local_rank("pp")
    model = layers(2)
    ddp = DistributedDataParallel(model[number], process_group=mesh.get_group("dp"))
    device = torch.device("cpu")
    stage = PipelineStage(ddp, number, 2, device, group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = truth.sgd(model[number].parameters())
    for step in range(truth.NUM_STEPS):
        inputs, targets = truth.part(batch(step), mesh.get_group("dp"))
        optimizer.zero_grad()
        if number == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets)
        optimizer.step()
    same(model, trained(2), [number], "with DDP")


CHECKS = [check for name, check in globals().items() if name.startswith("check_")]

if __name__ == "__main__":
    truth.run(*CHECKS)
