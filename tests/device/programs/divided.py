"""Each rank: models that PyTorch divides among the ranks, on a device and on the CPU: the same
bits, as the operators are.

Arguments: cpu or the name of an emulated device, and the name of a check. Ranks may share one.
"""

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.device.emulated import use
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

DEVICE, CPU = use(sys.argv[1]), torch.device("cpu")
STEPS, ROWS, WIDTH, MICRO_BATCHES = 3, 24, 12, 6
State = list[Tensor]


def layers(number: int = 3) -> nn.Sequential:
    torch.manual_seed(1)
    made = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(number)]
    return nn.Sequential(*made)


def batch(step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn((2, ROWS, WIDTH), generator=generator)
    return inputs.to(device), targets.to(device)


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def train(model: nn.Module, device: torch.device, rows: slice, start: int = 0) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    make_steps(model, optimizer, device, rows, start)
    return optimizer


def make_steps(
    model: nn.Module, optimizer: Any, device: torch.device, rows: slice, start: int = 0
) -> None:
    for step in range(start, start + STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step, device)
        loss_of(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()


def own_rows() -> slice:
    return slice(dist.get_rank(), None, dist.get_world_size())


def whole(model: nn.Module) -> State:
    def full(tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    return [full(parameter).detach().cpu() for parameter in model.parameters()]


def line(device: torch.device) -> Any:
    return init_device_mesh(device.type, (dist.get_world_size(),))


def sharded(device: torch.device, **options: Any) -> nn.Module:
    model, mesh = layers().to(device), line(device)
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp(device: torch.device) -> State:
    model = sharded(device)
    train(model, device, own_rows())
    return whole(model)


def fsdp_bf16(device: torch.device) -> State:
    """Parameters stay whole between the passes."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(device, mp_policy=policy, reshard_after_forward=False)
    train(model, device, own_rows())
    return whole(model)


def tensor_parallel(device: torch.device) -> State:
    plan = {
        "0.0": ColwiseParallel(use_local_output=False),
        "1.0": RowwiseParallel(),
        "2.0": ColwiseParallel(output_layouts=Replicate()),
    }
    model = parallelize_module(layers().to(device), line(device), plan)
    train(model, device, slice(None))
    return whole(model)


def redistribute(device: torch.device) -> State:
    mesh, found = line(device), []
    tensor = batch(0, device)[0][:7]
    for source in (Replicate(), Shard(0), Shard(1)):
        for target in (Replicate(), Shard(0), Shard(1)):
            placed = distribute_tensor(tensor, mesh, [source]).redistribute(mesh, [target])
            found += [placed.to_local().cpu(), placed.full_tensor().cpu()]
    return found


def pipeline(kind: Any, stages_per_rank: int) -> Callable[[torch.device], State]:
    def run(device: torch.device) -> State:
        rank, size = dist.get_rank(), dist.get_world_size()
        number = stages_per_rank * size
        model = layers(number).to(device)
        own = [model[index] for index in range(rank, number, size)]
        places = range(rank, number, size)
        stages = [
            PipelineStage(stage, at, number, device) for stage, at in zip(own, places, strict=True)
        ]
        given: Any = stages if stages_per_rank > 1 else stages[0]
        schedule = kind(given, MICRO_BATCHES, loss_fn=loss_of)
        optimizer = torch.optim.AdamW(nn.ModuleList(own).parameters(), lr=0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs, targets = batch(step, device)
            ends = {"target": targets} if rank == size - 1 else {}
            schedule.step(*([inputs] if rank == 0 else []), **ends)
            optimizer.step()
        return whole(nn.ModuleList(own))

    return run


def checkpoint(device: torch.device, other: torch.device) -> State:
    """Trained on `device`, saved, loaded on `other`, and trained on."""
    model = sharded(device)
    optimizer = train(model, device, own_rows())
    path: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(path, device=CPU)
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(parts, checkpoint_id=path[0])
    model = sharded(other)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(parts, checkpoint_id=path[0])
    set_state_dict(
        model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
    )
    make_steps(model, optimizer, other, own_rows(), start=STEPS)
    return whole(model)


def checkpoints(device: torch.device) -> State:
    if device == CPU:
        return checkpoint(CPU, CPU) * 3
    return [
        t for pair in ((device, device), (device, CPU), (CPU, device)) for t in checkpoint(*pair)
    ]


CHECKS: dict[str, Callable[[torch.device], State]] = {
    "fsdp": fsdp,
    "fsdp_bf16": fsdp_bf16,
    "tensor_parallel": tensor_parallel,
    "redistribute": redistribute,
    "gpipe": pipeline(ScheduleGPipe, 1),
    "1f1b": pipeline(Schedule1F1B, 1),
    "interleaved": pipeline(ScheduleInterleaved1F1B, 2),
    "checkpoints": checkpoints,
}


def main() -> None:
    if DEVICE != CPU:
        torch.accelerator.set_device_index(0)
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    for name in sys.argv[2:] or CHECKS:
        try:
            found, truth = CHECKS[name](DEVICE), CHECKS[name](CPU)
            assert found and len(found) == len(truth)
            worst = max(
                float((a - b).abs().max()) for a, b in zip(found, truth, strict=True) if a.numel()
            )
            same = all(torch.equal(a, b) for a, b in zip(found, truth, strict=True))
        except Exception as error:
            raise AssertionError(f"rank {rank}: {name}") from error
        print(f"rank {rank}: {name}: {worst:.3g}", flush=True)
        assert same, f"rank {rank}: {name}: {worst:.3g}"
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)


main()
