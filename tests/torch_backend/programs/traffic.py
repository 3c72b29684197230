"""Each rank: `group.WORLD.traffic` holds what all groups sent, whatever thread made the calls."""

import os

os.environ["PHALANX_COUNT"] = "1"

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

from phalanx.comm.traffic import Count

ITEMSIZE = 4


def check_collectives(rank: int, size: int) -> None:
    world = dist.group.WORLD
    before = world.traffic.snapshot()
    dist.all_reduce(torch.ones(8 * size))
    works = [dist.all_reduce(torch.ones(size), async_op=True) for _ in range(20)]
    for work in works:
        work.wait()
    functional.all_reduce(torch.ones(size), "sum", world).wait()
    dist.all_gather_into_tensor(torch.zeros(5 * size), torch.ones(5))
    dist.barrier()
    counted = world.traffic - before
    # each of the ranks owns an equal share
    reduced = ITEMSIZE * (8 + 20 + 1) * 2 * (size - 1)
    gathered = ITEMSIZE * 5 * (size - 1)
    assert counted.sent_bytes == counted.received_bytes == reduced + gathered, counted
    assert counted.payload == {
        "all_reduce": Count(22, ITEMSIZE * size * (8 + 20 + 1)),
        "all_gather": Count(1, ITEMSIZE * 5),
    }


def check_messages(rank: int, size: int) -> None:
    world = dist.group.WORLD
    before = world.traffic.snapshot()
    got = torch.zeros(3)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.ones(3), (rank + 1) % size),
            dist.P2POp(dist.irecv, got, (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    counted = world.traffic - before
    assert got.sum() == 3
    assert (counted.sent_bytes, counted.received_bytes, counted.messages) == (12, 12, 1), counted
    assert counted.payload == {"send": Count(1, 12), "receive": Count(1, 12)}


def check_groups(size: int) -> None:
    """New groups and meshes count in the same place."""
    world = dist.group.WORLD
    all_ranks = dist.new_group(list(range(size)))
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("outer", "inner"))
    inner = mesh["inner"].get_group()
    assert all_ranks.traffic is inner.traffic is world.traffic
    before = world.traffic.snapshot()
    for group in (all_ranks, inner):
        dist.all_reduce(torch.ones(size), group=group)
    counted = world.traffic - before
    assert counted.sent_bytes == counted.received_bytes == 2 * ITEMSIZE * 2 * (size - 1)
    assert counted.payload == {"all_reduce": Count(2, 2 * ITEMSIZE * size)}


def main() -> None:
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    check_collectives(rank, size)
    check_messages(rank, size)
    check_groups(size)
    dist.group.WORLD.traffic = None
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    print(f"\nrank {rank} of {size} is done", flush=True)


main()
