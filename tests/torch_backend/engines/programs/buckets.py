"""Each rank: DDP's buckets lie where the others see them, and nothing else changes."""

import copy
import os
import resource
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import truth
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from phalanx.comm.shm import ShmGroup
from phalanx.jobs.cores import last_level_cache_bytes
from phalanx.torch_backend.ddp import MEGABYTE, bucket_cap_mb


def trained(group: dist.ProcessGroup | None = None, **options: object) -> nn.Sequential:
    model = truth.net()
    ddp = DistributedDataParallel(model, process_group=group, **options)
    truth.train(ddp, truth.sgd(model.parameters()), truth.parts())
    return model


def shared(model: nn.Module) -> list[bool]:
    """Whether the others see the gradients, which are views of buckets."""
    return [parameter.grad.untyped_storage().is_shared() for parameter in model.parameters()]


def without_buckets() -> dist.ProcessGroup:
    """A group that copies what it reduces."""
    group = dist.new_group()
    group.buckets._shm = None
    return group


def check_views() -> None:
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
        model = trained(gradient_as_bucket_view=True, **options)
        assert all(shared(model)), shared(model)
        copying = trained(without_buckets(), gradient_as_bucket_view=True, **options)
        assert not any(shared(copying))
        truth.same_parameters(model, truth.trained())
        truth.same_parameters(model, copying, tolerance=0.0)


class Witness:
    """Stands before a node and remembers what is shown to it."""

    def __init__(self, node: ShmGroup) -> None:
        self._shm, self.size = node, node.size
        self.shown: list[int] = []

    def export(self, descriptor: int, address: int, num_bytes: int, owner: object) -> bool:
        self.shown.append(num_bytes)
        return self._shm.export(descriptor, address, num_bytes, owner=owner)


def check_copies() -> None:
    """Gradients beside the buckets: they move all the same, and again when DDP makes
    them anew after the first step."""
    group = dist.new_group()
    witness = group.buckets._shm = Witness(group.buckets._shm)
    model = trained(group)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    assert witness.shown == 2 * [num_bytes], f"{witness.shown}, not twice {num_bytes}"
    assert not any(shared(model))
    truth.same_parameters(model, truth.trained())
    truth.same_parameters(model, trained(without_buckets()), tolerance=0.0)


def check_every_model() -> None:
    """Every bucket moves, those of later models too.

    Buckets of which it was known that they could not be moved were remembered by their address,
    and so was by mistake every other bucket: a later one at the same address stayed private, on
    some ranks and not on others.
    """
    group = dist.new_group()
    for _ in range(30):
        assert all(shared(trained(group, gradient_as_bucket_view=True)))


def check_small_buckets() -> None:
    """Those below 16 KB are copied; both kinds in one model."""
    model = trained(gradient_as_bucket_view=True, bucket_cap_mb=0.005)
    assert 0 < sum(shared(model)) < len(shared(model)), shared(model)
    truth.same_parameters(model, truth.trained())


def check_other_tensors_stay() -> None:
    """Only what DDP itself brings is moved: an array of NumPy may look at any other tensor."""
    model = truth.net()
    ddp = DistributedDataParallel(model)
    truth.train(ddp, truth.sgd(model.parameters()), truth.parts())
    mine = torch.ones(100_000)
    array = mine.numpy()
    dist.all_reduce(mine)
    assert not mine.untyped_storage().is_shared()
    assert array[-1] == dist.get_world_size()
    hook_saw = []

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        hook_saw.append(bucket.buffer())
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())

    model = truth.net()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, hook)
    truth.train(ddp, truth.sgd(model.parameters()), truth.parts())
    assert hook_saw
    assert not any(buffer.untyped_storage().is_shared() for buffer in hook_saw)


def check_size_of_buckets() -> None:
    size = dist.get_world_size()
    own = bucket_cap_mb(size, last_level_cache_bytes(), 0)
    assert DistributedDataParallel(truth.net()).bucket_bytes_cap == own * MEGABYTE
    assert DistributedDataParallel(truth.net(), bucket_cap_mb=3).bucket_bytes_cap == 3 * MEGABYTE
    assert (
        DistributedDataParallel(truth.net(), None, None, 0, True, None, None, 5).bucket_bytes_cap
        == 5 * MEGABYTE
    )
    gloo = dist.new_group(backend="gloo")
    apart = without_buckets()
    assert (
        DistributedDataParallel(truth.net(), process_group=apart).bucket_bytes_cap == 25 * MEGABYTE
    ), "PyTorch's own where no memory is shared"
    assert (
        DistributedDataParallel(truth.net(), process_group=gloo).bucket_bytes_cap == 25 * MEGABYTE
    )
    dist.destroy_process_group(gloo)


def check_group_of_a_mesh() -> None:
    """DDP(device_mesh=…): its buckets were looked for in the default group and stayed private."""
    size = dist.get_world_size()
    shape = (2, 2) if size == 4 else (size, 1)  # only of 4 ranks is the group another one
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard"))["replica"]
    model = truth.net()
    ddp = DistributedDataParallel(model, device_mesh=mesh, gradient_as_bucket_view=True)
    own = bucket_cap_mb(shape[0], last_level_cache_bytes(), 0)
    assert ddp.bucket_bytes_cap == own * MEGABYTE
    truth.train(ddp, truth.sgd(model.parameters()), truth.parts(group=mesh.get_group()))
    assert all(shared(model))
    truth.same_parameters(model, truth.trained())


def check_many_models() -> None:
    """Buckets are given back with their models: more of them than pieces that can be shown."""
    expected = truth.trained(num_steps=1)
    for _ in range(150):
        model = truth.net()
        ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
        truth.train(ddp, truth.sgd(model.parameters()), truth.parts([0]))
        assert all(shared(model))
        del ddp
    truth.same_parameters(model, expected)


def check_accumulation_before_the_first_reduction() -> None:
    """Gradients that were there before the bucket moved are not lost by it."""
    model = truth.net()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    given = truth.part(truth.batch(0))
    with ddp.no_sync():
        truth.loss_of(ddp, given).backward()
    truth.loss_of(ddp, given).backward()
    expected = truth.net()
    truth.loss_of(expected, truth.batch(0)).backward()
    truth.close(model[0].weight.grad, 2 * expected[0].weight.grad, "gradient")
    assert all(shared(model))


def check_few_descriptors() -> None:
    """Of the last rank: what it cannot share all ranks copy, and files can still be opened."""
    used = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    layers = [layer for _ in range(24) for layer in (nn.Linear(96, 96), nn.Tanh())]
    models = []
    for group in (dist.new_group(), without_buckets()):
        torch.manual_seed(1)
        model = nn.Sequential(*copy.deepcopy(layers))
        ddp = DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=0.03, gradient_as_bucket_view=True
        )
        if dist.get_rank() == dist.get_world_size() - 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2 * used + 16, hard))
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            for step in range(3):
                torch.manual_seed(10 * step + dist.get_rank())
                ddp(torch.randn(4, 96)).square().sum().backward()
        Path("/proc/self/stat").read_text()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        models.append(model)
        shares = sum(shared(model))
        is_last = dist.get_rank() == dist.get_world_size() - 1
        if group.buckets._shm is not None:
            assert 0 < shares < 48 if is_last else shares == 48, shares
    for own, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(own.grad, other.grad)


CHECKS = [check for name, check in globals().items() if name.startswith("check_")]

if __name__ == "__main__":
    truth.run(*CHECKS)
