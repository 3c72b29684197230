"""Each rank: what `phalanx.start` and the backend say to devices that do not fit.

Arguments: cpu, the name of an emulated device or of a mixture, and the name of a case.
"""

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from tests.device.emulated import install, use
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import phalanx
from phalanx.jobs.detect import detect

DEVICE = use(sys.argv[1]).type
LAUNCHED = detect(os.environ)
RANK = LAUNCHED.rank if LAUNCHED else 0
DATA = torch.randn(24, 4), torch.randint(3, (24,))


def train(device: str = DEVICE, model: nn.Module | None = None, **options: object) -> None:
    model = model or nn.Linear(4, 3)
    optimizer = SGD(model.parameters(), lr=0.1)
    arguments: dict[str, object] = {"batch_size": 12, "device": device, **options}
    run = phalanx.start(model, optimizer, DATA, **arguments)  # type: ignore[arg-type]
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
    run.close()


def with_batch_norm() -> None:
    train(model=nn.Sequential(nn.Linear(4, 3), nn.SyncBatchNorm(3)))


def on_last_rank(device: str) -> Callable[[], None]:
    return lambda: train(device if LAUNCHED and LAUNCHED.world_size - 1 == RANK else DEVICE)


def some_on_cpu() -> None:
    """Ranks of one node, which see the same devices; the first leaves them alone."""
    train("cpu" if RANK == 0 else DEVICE)
    train("cpu" if RANK == 0 else DEVICE, strategy="zero")


def default_group() -> None:
    dist.init_process_group("mpi")
    train()


def group_made_before() -> None:
    """Tensors of a device that PyTorch did not see when the group was made."""
    dist.init_process_group("mpi")
    install("vexa")
    dist.all_reduce(torch.ones(3, device="vexa"))


def other_dtypes() -> None:
    os.environ["PHALANX_CHECK"] = "1"
    dist.init_process_group("mpi")
    dtype = torch.float64 if RANK == 1 else torch.float32
    dist.all_reduce(torch.ones(3, dtype=dtype, device=DEVICE))


def several_devices() -> None:
    dist.init_process_group("mpi")
    shards = torch.empty(dist.get_world_size(), 3).unbind()
    dist.all_gather(list(shards), torch.ones(3, device=DEVICE))


def full_memory() -> None:
    """Products of a tensor of two thirds of the memory, of its parts and whole, as it is where
    strides are not those of parts; then one where nothing is left."""
    dist.init_process_group("mpi")
    tensor = torch.arange(8 * 2**20, dtype=torch.float32, device=DEVICE).view(2**10, 2**13)
    expected = torch.arange(8 * 2**20, dtype=torch.float32) * (0.5 * dist.get_world_size())
    halved = dist._make_nccl_premul_sum(0.5)
    dist.all_reduce(tensor, halved)
    assert torch.equal(tensor.cpu().flatten(), expected)
    tensor.copy_(torch.arange(8 * 2**20, dtype=torch.float32).view(2**10, 2**13))
    dist.all_reduce(tensor.t(), halved)
    assert torch.equal(tensor.cpu().flatten(), expected)
    held = []
    try:
        while True:
            held.append(torch.empty(2**10, device=DEVICE))
    except torch.OutOfMemoryError:
        dist.all_reduce(tensor, halved)


CASES: dict[str, Callable[[], None]] = {
    "trains": train,
    "shared": lambda: train(strategy="shared"),
    "compressed": lambda: train(strategy_options={"compress": "bf16"}),
    "compressed on the CPU": lambda: train(
        strategy_options={"compress": "bf16"} if DEVICE == "cpu" else {}
    ),
    "some on the CPU": some_on_cpu,
    "default group": default_group,
    "bitwise": lambda: train(bitwise=True),
    "zero 3": lambda: train(strategy="zero", strategy_options={"zero_stage": 3}),
    "batch norm": with_batch_norm,
    "first": lambda: train(f"{DEVICE}:0"),
    "no such index": on_last_rank("vexa:5"),
    "no cuda": on_last_rank("cuda"),
    "no such name": on_last_rank("gpu"),
    "group made before": group_made_before,
    "other dtypes": other_dtypes,
    "several devices": several_devices,
    "full memory": full_memory,
}

CASES[sys.argv[2]]()
print(f"rank {RANK} of {LAUNCHED.world_size if LAUNCHED else 1} is done")
