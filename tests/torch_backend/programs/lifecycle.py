"""Each rank: groups come and go, other backends live beside, and it begins again."""

import inspect
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def total(group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def check_subgroups(rank: int, size: int) -> None:
    for number in range(120):
        members = [r for r in range(size) if (number + r) % size or size == 1]
        group = dist.new_group(members)
        if rank in members:
            assert total(group) == sum(1 + r for r in members)
            if number % 3:
                dist.destroy_process_group(group)
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
    if "sort_ranks" not in inspect.signature(dist.new_group).parameters:
        return  # PyTorch up to 2.12 knows no order but the ranks' own
    backwards = dist.new_group(list(range(size))[::-1], sort_ranks=False)
    assert dist.get_rank(backwards) == size - 1 - rank
    tensor = torch.tensor([rank])
    dist.broadcast(tensor, src=0, group=backwards)
    assert tensor.item() == 0


def check_overlapping(rank: int, size: int) -> None:
    """Groups that share members, used by them in different orders, asynchronously."""
    pairs = [dist.new_group([r, (r + 1) % size]) for r in range(size)]
    own = [pairs[rank], pairs[(rank - 1) % size]]
    tensors = [torch.ones(1000), torch.ones(1000)]
    works = [dist.all_reduce(tensors[i], group=own[i], async_op=True) for i in range(2)]
    for work in works:
        work.wait()
    assert all(tensor[0] == 2 for tensor in tensors)


def check_gloo_beside(rank: int, size: int) -> None:
    with pytest.raises(RuntimeError, match="on all ranks first"):  # no rank can open it by itself
        dist.new_group([rank], backend="gloo", use_local_synchronization=True)
    mixed = dist.new_group(backend="cpu:gloo,cuda:mpi")
    assert total(mixed) == sum(range(1, size + 1))
    alone = dist.new_group([rank], backend="gloo", use_local_synchronization=True)
    assert total(alone) == 1 + rank
    gloo = dist.new_group(backend="gloo")
    assert dist.get_backend(gloo) == "gloo"
    assert total(gloo) == sum(range(1, size + 1))
    dist.monitored_barrier(gloo)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"from {rank}", str(rank))
    assert store.get(f"from {(rank + 1) % size}") == str((rank + 1) % size).encode()


def check_made_by_members_only(rank: int, size: int) -> None:
    """PyTorch 2.15 counts such groups on their members alone, and numbers all groups made later
    by that count: Gloo's ranks then wait for each other under different names."""
    parts = [[r for r in range(size) if r % 2 == half] for half in range(min(2, size))]
    for _ in range(2):
        part = dist.split_group(split_ranks=parts)
        assert total(part) == sum(1 + r for r in parts[rank % 2])
    members = list(range(max(1, size - 1)))
    if rank in members:  # PyTorch refuses this for the name "mpi" alone
        group = dist.new_group(members, backend="cpu:mpi", use_local_synchronization=True)
        assert total(group) == sum(1 + r for r in members)
    inner = dist.split_group(part, [[0]])
    outside = inner in (None, dist.GroupMember.NON_GROUP_MEMBER)  # the former up to 2.13
    assert outside == (dist.get_rank(part) != 0)
    assert outside or total(inner) == 1 + rank


def check_splits(rank: int, size: int) -> None:
    """What PyTorch asks of a backend that splits: pipelines of 2.15 look at the flag, and from 2.14
    the order of the ranks counts. Another backend was taken and not heeded."""
    assert dist.group.WORLD.supports_splitting
    backwards = list(range(size))[::-1]
    turned = dist.split_group(split_ranks=[backwards], backend="cpu:mpi")
    keeps_order = torch.__version__ >= "2.14"
    assert dist.get_rank(turned) == (size - 1 - rank if keeps_order else rank)
    wrong = [
        ({}, [[0], []], "empty"),
        ({}, [[0, 0]], "twice"),
        ({"backend": "gloo"}, [[0]], "gloo"),
    ]
    for more, ranks, text in wrong:
        with pytest.raises(ValueError, match=text):
            dist.split_group(split_ranks=ranks, **more)


def check_hooks() -> None:
    """They are installed once, however often a process begins again."""
    hook, names = sys.excepthook, []
    while hook is not None and getattr(hook, "__closure__", None):
        names.append(hook.__name__)
        hook = inspect.getclosurevars(hook).nonlocals.get("old_hook")
    assert names == ["_distributed_excepthook"], names
    assert hook.__module__ == "phalanx.torch_backend.exit_hooks"


def check_mesh(size: int) -> None:
    mesh = init_device_mesh("cpu", (size, 1), mesh_dim_names=("replica", "shard"))
    assert mesh["replica"].get_group().size() == size
    assert total(mesh.get_group("replica")) == sum(range(1, size + 1))
    assert mesh.get_group("shard").size() == 1


def check_surface() -> None:
    group = dist.group.WORLD
    assert torch.device("cpu") in group._device_types
    assert group._get_backend(torch.device("cpu")).name() == "mpi"
    assert group._get_backend_name() == "mpi"
    assert dist.distributed_c10d._get_object_coll_device() == "cpu"
    assert dist.get_pg_count() >= 1
    repr(group)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "phalanx" in thread.name]


def main() -> None:
    for _ in range(2):
        dist.init_process_group("mpi")
        rank, size = dist.get_rank(), dist.get_world_size()
        check_surface()
        check_gloo_beside(rank, size)  # from 2.15 it would not join after the next line
        check_splits(rank, size)
        check_made_by_members_only(rank, size)
        check_subgroups(rank, size)
        if size > 2:
            check_overlapping(rank, size)
        check_mesh(size)
        check_hooks()
        dist.all_reduce(torch.ones(1), async_op=True).wait()
        assert threads()
        dist.destroy_process_group()
        assert not threads()
    for backend in ("cpu:mpi,cuda:mpi", "cpu:mpi", "cpu:gloo,cuda:mpi", "gloo"):
        dist.init_process_group(backend, init_method="mpi://")
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        assert total() == sum(range(1, size + 1))
        group = dist.new_group([0])
        if rank == 0:
            assert total(group) == 1
        objects = [None] * size
        dist.all_gather_object(objects, rank)
        assert objects == list(range(size))
        dist.barrier()
        dist.destroy_process_group()
    dist.init_process_group("gloo", init_method="mpi://")
    everyone = dist.new_group(backend="mpi")
    assert total(everyone) == sum(range(1, size + 1))
    some = dist.new_group([0], backend="mpi")
    if rank == 0:
        assert total(some) == 1
    dist.destroy_process_group()
    dist.init_process_group("mpi")
    total()
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    print(f"rank {rank} of {size} is done", flush=True)  # and ends without destroying anything


main()
