"""Ranks whose surroundings differ: they agree on one protocol, or every rank is told.

Words: any of `affinity`, `policies`, `environment`, `versions`.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

from phalanx.comm import settings
from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.wait import WaitPolicy
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.jobs.cores import bound_cores

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
ALL = sorted(os.sched_getaffinity(0))
# Around the thresholds of both protocols: with a core for every rank and without.
COUNTS = [1, 511, 512, 513, 2047, 2048, 2049, 32_768, 32_769, 100_003, 400_001]


def check_sums(group: Group) -> None:
    for count in COUNTS:
        values = [np.arange(count, dtype=np.float32) % 97 + peer for peer in range(size)]
        array = values[rank].copy()
        group.all_reduce(Buffer.of(array))
        assert (array == sum(values)).all(), ("all_reduce", count)
        array = values[rank].copy()
        group.broadcast(Buffer.of(array), root=size - 1)
        assert (array == values[-1]).all(), ("broadcast", count)
        outputs = [np.empty_like(array) for _ in range(size)]
        group.all_gather([Buffer.of(output) for output in outputs], Buffer.of(values[rank]))
        assert all((a == b).all() for a, b in zip(outputs, values, strict=True)), count
        own = np.empty_like(array)
        group.reduce_scatter(Buffer.of(own), [Buffer.of(value) for value in values])
        assert (own == size * values[rank]).all(), ("reduce_scatter", count)
        group.all_to_all([Buffer.of(o) for o in outputs], [Buffer.of(v) for v in values])
        assert all((output == values[rank]).all() for output in outputs), ("all_to_all", count)


def affinity() -> None:
    bindings: dict[str, Callable[[int], list[int]]] = {
        "the first rank has one core": lambda r: ALL[:1] if r == 0 else ALL,
        "the last rank has one core": lambda r: ALL[-1:] if r == size - 1 else ALL,
        "a core for every rank": lambda r: [ALL[r % len(ALL)]],
        "all ranks on one core": lambda _: ALL[:1],
    }
    for name, cores_of in bindings.items():
        os.sched_setaffinity(0, cores_of(rank))
        world = World.create(timeout_s=30)
        shared = set(itertools.chain.from_iterable(cores_of(peer) for peer in range(size)))
        assert len(bound_cores()) == len(cores_of(rank))
        assert world.settings.cores == len(shared), (name, world.settings)
        assert world.policy == WaitPolicy.for_node(size, len(shared)), (name, world.policy)
        check_sums(world.group)
        world.close()
    os.sched_setaffinity(0, ALL)


def policies() -> None:
    """How a rank waits does not change what it writes."""
    spinning, sleeping = WaitPolicy.for_node(1, 1), WaitPolicy.for_node(64, 1)
    world = World.create(timeout_s=30)
    for first in (spinning, sleeping):
        other = sleeping if first is spinning else spinning
        policy = first if rank == 0 else other
        group = world.group.subgroup(range(size), name="waits otherwise", policy=policy)
        check_sums(group)
        group.close()
    world.close()


@contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def changed_on_last(name: str, value: str) -> World:
    with environment({name: value} if rank == size - 1 else {}):
        return World.create(timeout_s=30)


def refused(create: Callable[[], World]) -> None:
    with pytest.raises(UserError) as told:
        create()
    print(f"\nrank {rank} is told: {told.value}", flush=True)


def variables() -> None:
    for name, value in (
        ("PHALANX_LINK", "1Gbit/s,1ms"),
        ("PHALANX_LINK", "fast"),
        ("PHALANX_ALL_REDUCE", "ring"),
        ("PHALANX_ALL_REDUCE", "slow"),
        ("PHALANX_GPU_AWARE", "perhaps"),
    ):
        refused(partial(changed_on_last, name, value))
    world = changed_on_last("PHALANX_CHECK", "1")
    assert world.group.check, "one rank asks for it, so all compare"
    check_sums(world.group)
    world.close()
    world = changed_on_last("PHALANX_KERNELS", "arrays")
    assert world.group.shm is None
    check_sums(world.group)
    world.close()
    world = changed_on_last("PHALANX_COUNT", "1")
    assert (world.traffic is not None) == (rank == size - 1)
    check_sums(world.group)
    world.close()
    # What is set later counts for nobody: the world has agreed.
    world = World.create(timeout_s=30)
    with environment({"PHALANX_ALL_REDUCE": "tree"} if rank == 0 else {}):
        group = world.group.subgroup(range(size), name="made later")
        check_sums(group)
        group.close()
    world.close()


def versions() -> None:
    settings.VERSION = "0.0.1" if rank == 0 else settings.VERSION
    refused(partial(World.create, timeout_s=30))


for word in sys.argv[1:]:
    {
        "affinity": affinity,
        "policies": policies,
        "environment": variables,
        "versions": versions,
    }[word]()
print(f"\nrank {rank} of {size} is done", flush=True)
