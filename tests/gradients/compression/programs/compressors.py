"""Every compressor over MPI, and under DDP on both backends."""

import os
from collections.abc import Callable
from datetime import timedelta

os.environ["PHALANX_COUNT"] = "1"
import torch
import torch.distributed as dist
from torch import Size, Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.comm.world import World
from phalanx.gradients.compression.backends import GroupBackend, TorchBackend
from phalanx.gradients.compression.compressor import ReduceBackend
from phalanx.gradients.compression.ddp import Compressed, reduce_bucket
from phalanx.gradients.compression.make import NAMES, make_compressor
from phalanx.torch_backend.store import open_store

SHAPES = [Size([300, 40]), Size([300]), Size([11, 300])]
COUNT = sum(shape.numel() for shape in SHAPES)
STEPS = 5
# Of the sum's norm: what the sum of these steps is wrong by at most.
ERRORS = {"none": 1e-6, "fp16": 5e-4, "bf16": 5e-3, "int8": 2e-2, "powersgd": 0.9, "topk": 0.9}

world = World.create(timeout_s=30)
rank, size = world.rank, world.size
torch.manual_seed(rank)


def same_everywhere(values: Tensor) -> bool:
    gathered = world.gather(values.detach().double().flatten().numpy())
    return gathered is None or bool((gathered == gathered[0]).all())


def check_sums(ranks: ReduceBackend, counted: Callable[[], int] | None) -> None:
    for name in NAMES:
        compressor = make_compressor(name, topk_fraction=0.1, powersgd_rank=8)
        compressor.prepare(0, SHAPES)
        told, truth = torch.zeros(COUNT), torch.zeros(COUNT)
        for step in range(STEPS):
            common = torch.randn(COUNT, generator=torch.Generator().manual_seed(step))
            own = torch.randn(COUNT, generator=torch.Generator().manual_seed(99 * step + rank))
            values = common + 0.5 * own
            exact = values.clone()
            ranks.all_reduce(exact)
            before = counted() if counted else 0
            compressor.reduce(0, values, ranks)
            if counted:
                sent = counted() - before
                assert sent == compressor.sent_bytes(SHAPES, rank, size), (name, sent)
            assert same_everywhere(values), name
            told += values
            truth += exact
        error = float((told - truth).norm() / truth.norm())
        assert error <= ERRORS[name], (name, error)


def check_ddp() -> None:
    """The loss goes down, and all ranks end with the same parameters."""
    images = torch.randn(32, 60, generator=torch.Generator().manual_seed(rank))
    labels = (images[:, :10] + images[:, 10:20]).argmax(1)
    for name in NAMES:
        torch.manual_seed(rank)
        net = nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 10))
        model = DistributedDataParallel(net, bucket_cap_mb=0.01)  # two buckets
        model.register_comm_hook(Compressed(name, topk_fraction=0.1), reduce_bucket)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        losses = []
        for _ in range(12):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.8 * losses[0], (name, losses)
        for parameter in net.parameters():
            assert same_everywhere(parameter), name


traffic = world.traffic
assert traffic is not None
check_sums(GroupBackend(world.group), lambda: traffic.snapshot().sent_bytes)
for backend in ("mpi", "gloo"):
    store = open_store(world, timedelta(seconds=30)) if backend == "gloo" else None
    where = {"store": store, "rank": rank, "world_size": size} if store else {}
    dist.init_process_group(backend, **where)
    check_sums(TorchBackend(), None)
    check_ddp()
    dist.destroy_process_group()
print(f"\nrank {rank} of {size} is done", flush=True)
world.close()
