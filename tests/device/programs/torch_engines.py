"""Each rank: PyTorch's own engines on backend mpi with models on a device, against one process.

Arguments: cuda, cpu or the name of an emulated device, and the name of a check. Ranks may share
one.
"""

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.device.emulated import use
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

from phalanx.gradients.compression.ddp import Compressed, reduce_bucket

DEVICE = use(sys.argv[1])
STEPS, ROWS = 4, 24


def model_of(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 4)
    return nn.Sequential(*layers).to(DEVICE, dtype)


def data_of(step: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 16, generator=generator, dtype=dtype).to(DEVICE)


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).square().mean()


def train(model: nn.Module, optimizer: Any, rows: slice, dtype: torch.dtype) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, data_of(step, dtype)[rows]).backward()
        optimizer.step()


def own_rows() -> slice:
    return slice(dist.get_rank(), None, dist.get_world_size())


def difference(model: nn.Module, truth: nn.Module) -> float:
    def full(parameter: Tensor) -> Tensor:
        return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter

    pairs = zip(model.parameters(), truth.parameters(), strict=True)
    return max(float((full(one).detach() - other.detach()).abs().max()) for one, other in pairs)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def against_truth(
    wrap: Callable[[nn.Module], nn.Module],
    make: Callable[[nn.Module], Any] = sgd,
    make_truth: Callable[[nn.Module], Any] | None = None,
    dtype: torch.dtype = torch.float64,
) -> float:
    truth, inner = model_of(dtype), model_of(dtype)
    train(truth, (make_truth or make)(truth), slice(None), dtype)
    model = wrap(inner)
    train(model, make(model), own_rows(), dtype)
    return difference(model, truth)


def ddp() -> float:
    return against_truth(DDP)


def ddp_of_views() -> float:
    return against_truth(lambda model: DDP(model, gradient_as_bucket_view=True, bucket_cap_mb=0.3))


def ddp_accumulates() -> float:
    """Two micro-batches a step, the first without a sum; a layer that is not used."""
    truth = model_of()
    inner = copy.deepcopy(truth)
    inner.unused = nn.Linear(3, 3).to(DEVICE, torch.float64)
    del inner._modules["unused"]
    model = DDP(inner, find_unused_parameters=True)
    one, other = sgd(truth), sgd(model)
    for step in range(STEPS):
        one.zero_grad(), other.zero_grad()
        loss_of(truth, data_of(step)).backward()
        first, second = data_of(step)[own_rows()].chunk(2)
        with model.no_sync():
            (loss_of(model, first) / 2).backward()
        (loss_of(model, second) / 2).backward()
        one.step(), other.step()
    return difference(model, truth)


def ddp_compressed(name: str) -> float:
    def wrap(model: nn.Module) -> nn.Module:
        wrapped = DDP(model)
        wrapped.register_comm_hook(Compressed(name), reduce_bucket)
        return wrapped

    return against_truth(wrap, dtype=torch.float32)


def ddp_hook(state: Callable[[], Any], hook: Any) -> float:
    def wrap(model: nn.Module) -> nn.Module:
        wrapped = DDP(model)
        wrapped.register_comm_hook(state(), hook)
        return wrapped

    return against_truth(wrap, dtype=torch.float32)


def sync_batch_norm() -> float:
    def build() -> nn.Module:
        torch.manual_seed(1)
        layers = nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)
        return nn.Sequential(*layers).to(DEVICE, torch.float64)

    truth, inner = build(), nn.SyncBatchNorm.convert_sync_batchnorm(build())
    train(truth, sgd(truth), slice(None), torch.float64)
    model = DDP(inner)
    train(model, sgd(model), own_rows(), torch.float64)
    return difference(model, truth)


def fsdp() -> float:
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))

    def wrap(model: nn.Module) -> nn.Module:
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    return against_truth(wrap, adam)


def zero() -> float:
    def make(model: nn.Module) -> Any:
        kind = torch.optim.AdamW
        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=kind, lr=0.01)

    return against_truth(DDP, make, adam)


CHECKS: dict[str, tuple[Callable[[], float], float]] = {
    "ddp": (ddp, 1e-12),
    "ddp_of_views": (ddp_of_views, 1e-12),
    "ddp_accumulates": (ddp_accumulates, 1e-12),
    "sync_batch_norm": (sync_batch_norm, 1e-11),
    "fsdp": (fsdp, 1e-11),
    "zero": (zero, 1e-11),
    "bf16": (lambda: ddp_compressed("bf16"), 0.01),
    "fp16": (lambda: ddp_compressed("fp16"), 0.01),
    "int8": (lambda: ddp_compressed("int8"), 0.02),
    "powersgd": (lambda: ddp_compressed("powersgd"), 0.5),
    "topk": (lambda: ddp_compressed("topk"), 0.5),
    "torch_fp16": (lambda: ddp_hook(lambda: None, default_hooks.fp16_compress_hook), 0.01),
    "torch_powersgd": (
        lambda: ddp_hook(
            lambda: powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2),
            powerSGD_hook.powerSGD_hook,
        ),
        0.5,
    ),
}


def main() -> None:
    if DEVICE.type != "cpu":
        torch.accelerator.set_device_index(0)
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    failed = []
    on_cpu = [name for name in CHECKS if name != "sync_batch_norm"]  # which PyTorch has for GPUs
    for name in sys.argv[2:] or (CHECKS if DEVICE.type == "cuda" else on_cpu):
        check, most = CHECKS[name]
        try:
            found = check()
        except Exception as error:
            raise AssertionError(f"rank {rank}: {name}") from error
        print(f"rank {rank}: {name}: {found:.3g}", flush=True)
        if not found <= most:
            failed.append(f"{name}: {found:.3g} > {most:g}")
    assert not failed, failed
    dist.destroy_process_group()
    print(f"rank {rank} of {size} is done", flush=True)


main()
