"""Memory of ranks that cannot be mapped: all copy, and somebody is told. Words: a folder."""

import os
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.shm import ShmGroup
from phalanx.comm.world import World

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
last = rank == size - 1
COUNT = 300_001
IN_PLACE = 2  # phases: met, and done


def phases(node: ShmGroup, call: Callable[[], object]) -> int:
    before = node._module.progress(node.handle)[0]
    call()
    return int(node._module.progress(node.handle)[0] - before)


def reduce_in(node: ShmGroup, array: np.ndarray) -> int:
    array[:] = np.arange(COUNT) % 1000 + rank
    used = phases(node, lambda: node.all_reduce(Buffer.of(array)))
    assert (array == size * (np.arange(COUNT) % 1000) + sum(range(size))).all()
    array[:] = rank
    both = (Buffer.of(array),)
    node.run(Collective("reduce", both, both, ReduceOp.SUM, root=size - 1))
    assert (array == (sum(range(size)) if last else rank)).all()
    return used


def check_usual(node: ShmGroup) -> None:
    array = node.allocate(COUNT, np.float32)
    assert reduce_in(node, array) == IN_PLACE + 1, "one more, in which it is mapped"
    assert reduce_in(node, array) == IN_PLACE


def check_no_descriptor_left(node: ShmGroup) -> None:
    """Of the last rank, when it meets the buffers of the others."""
    array = node.allocate(COUNT, np.float32)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if last:
        free = os.open("/dev/null", os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        used = [reduce_in(node, array), reduce_in(node, array)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    texts = [str(warning.message) for warning in said]
    if last:
        assert len(texts) == 1, texts
        assert "could not be mapped (Too many open files): all ranks copy" in texts[0]
    else:
        assert not texts
    assert used[0] == used[1] + 1 > IN_PLACE + 1, used
    assert reduce_in(node, array) == used[1], "what all have copied they go on to copy"
    check_usual(node)


def check_other_file(node: ShmGroup, folder: Path) -> None:
    """Behind the number that a rank has shown: it is neither mapped nor written."""
    content = os.urandom(8 * COUNT)
    data = folder / f"data {rank}"
    data.write_bytes(content)
    array = node.allocate(COUNT, np.float32)
    if last:
        shown = max(
            int(name)
            for name in os.listdir("/proc/self/fd")
            if "memfd:phalanx" in str(Path(f"/proc/self/fd/{name}").resolve())
        )
        with data.open("rb") as file:
            os.dup2(file.fileno(), shown)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert reduce_in(node, array) > IN_PLACE + 1
    assert len(said) == (0 if last else 1), said
    assert all("Stale file handle" in str(warning.message) for warning in said)
    assert data.read_bytes() == content


def check_groups_hold_no_descriptors(world: World) -> None:
    before = len(os.listdir("/proc/self/fd"))
    groups = [world.group.subgroup(range(size), name=f"group {n}") for n in range(20)]
    assert all(group.shm is not None for group in groups)
    for group in groups:
        array = np.full(COUNT, 1.0, np.float32)
        group.all_reduce(Buffer.of(array))
        assert (array == size).all()
    assert len(os.listdir("/proc/self/fd")) <= before + 2, "but for what MPI may open"
    for group in groups:
        group.close()


world = World.create(timeout_s=30)
for check in (check_usual, check_no_descriptor_left):
    group = world.group.subgroup(range(size), name=check.__name__)
    assert group.shm is not None
    check(group.shm)
    group.close()
group = world.group.subgroup(range(size), name="other file")
assert group.shm is not None
check_other_file(group.shm, Path(sys.argv[1]))
group.close()
check_groups_hold_no_descriptors(world)
world.close()
print(f"\nrank {rank} of {size} is done", flush=True)
