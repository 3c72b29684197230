"""Long vectors of ranks that may read each other's memory, and of ranks that may not: a system, as
of some containers, refuses it to the last rank from its start, or later. Words: none."""

import ctypes
import errno
import itertools
import platform
import struct

import numpy as np
from mpi4py import MPI

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.shm import ShmGroup
from phalanx.comm.wait import WaitPolicy
from phalanx.jobs.cores import usable_cores

rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
last = rank == size - 1
COUNT = 2_000_001
DIRECT = 3  # phases: met, own share reduced, all shares read
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}


def refuse_to_read() -> None:
    """Have the system refuse this process, from now on, the memory of others."""
    load_number, jump_if_equal, end = 0x20, 0x15, 0x06
    refuse, allow = 0x00050000 | errno.EPERM, 0x7FFF0000
    steps = [
        (load_number, 0, 0, 0),
        (jump_if_equal, 0, 1, PROCESS_VM_READV[platform.machine()]),
        (end, 0, 0, refuse),
        (end, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_filter, by_filter = 38, 22, 2
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_filter, by_filter, program, 0, 0) == 0, ctypes.get_errno()


def join() -> ShmGroup:
    policy = WaitPolicy.for_node(size, usable_cores())
    node = ShmGroup.join(MPI.COMM_WORLD.Dup(), policy=policy, name="test", timeout_s=20)
    assert node is not None
    return node


def phases(node: ShmGroup, shown: bool) -> int:
    """Return how many phases a sum takes. shown: others can map the buffer of the last rank."""
    check_movement(node)
    array = node.allocate(COUNT, np.float32) if shown and last else np.empty(COUNT, np.float32)
    array[:] = np.arange(COUNT) % 1000 + rank
    before = node._module.progress(node.handle)[0]
    node.all_reduce(Buffer.of(array))
    assert (array == size * (np.arange(COUNT) % 1000) + sum(range(size))).all()
    return int(node._module.progress(node.handle)[0] - before)


def check_movement(node: ShmGroup) -> None:
    whole = np.arange(COUNT, dtype=np.float32) % 1000 + rank
    cuts = [COUNT * peer // size + 7 * peer for peer in range(size)] + [COUNT]
    parts = [whole[begin:end] for begin, end in itertools.pairwise(cuts)]
    total = size * (np.arange(cuts[rank], cuts[rank + 1]) % 1000) + sum(range(size))
    for output in (np.empty_like(parts[rank]), parts[rank]):
        places = [*map(Buffer.of, parts)]
        node.run(Collective("reduce_scatter", places, [Buffer.of(output)], ReduceOp.SUM))
        assert (output == total).all()
    gathered = np.empty(COUNT, np.float32)
    outputs = [Buffer.of(gathered[begin:end]) for begin, end in itertools.pairwise(cuts)]
    node.run(Collective("all_gather", [Buffer.of(parts[rank])], outputs))
    assert (gathered == size * (np.arange(COUNT) % 1000) + sum(range(size))).all()
    sent = gathered.copy() if last else np.empty(COUNT, np.float32)
    both = [Buffer.of(sent)]
    node.run(Collective("broadcast", both, both, root=size - 1))
    assert sent.tobytes() == gathered.tobytes()
    apart = [np.full(COUNT, peer + rank, np.float32) for peer in range(size)]
    places, output = [*map(Buffer.of, apart)], apart[(rank + 1) % size]
    node.run(Collective("reduce_scatter", places, [Buffer.of(output)], ReduceOp.SUM))
    assert (output == size * rank + sum(range(size))).all(), "parts that are not in a row"


both = [join(), join()]
for node in both:
    for shown in (False, True):
        assert phases(node, shown) == DIRECT
if last:
    refuse_to_read()
for node in [*both, join()]:
    for shown in (False, True, False):
        assert phases(node, shown) > DIRECT, "copied, chunk by chunk"
print(f"\nrank {rank} of {size} is done", flush=True)
