"""A group that believes its ranks to be on several nodes: memory within, messages between.

Words: the number of each rank's node, such as `0 0 1 1`."""

import sys

import numpy as np
from mpi4py import MPI
from pretended import group_on

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import BFLOAT16, ReduceOp
from phalanx.comm.layout import share_of

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()
nodes = tuple(int(word) for word in sys.argv[1:])
group = group_on(nodes, name="pretended", timeout_s=20)
assert group.shm is None, "not all ranks share memory"
shares = nodes.count(nodes[rank]) > 1
assert (group._peers.intra_node is not None) == shares, "those of a node do"
for dtype in ("float32", "float16", "int64"):
    for count in (0, 1, 1000, 50_001, 300_000):
        array = (np.arange(count) % 100 + rank).astype(dtype)
        group.all_reduce(Buffer.of(array))
        expected = (np.arange(count) % 100) * size + sum(range(size))
        assert (array == expected.astype(dtype)).all(), (dtype, count)
        array = np.full(count, rank + 1, dtype)
        group.all_reduce(Buffer.of(array), ReduceOp.MAX, divisor=1.0)
        assert (array == size).all()
        cuts = [share_of(peer, size, count) for peer in range(size)]
        whole = Buffer.of((np.arange(count) % 100 + rank).astype(dtype))
        parts = [whole.part(cut.start, cut.stop) for cut in cuts]
        output = Buffer.of(np.zeros(len(cuts[rank]), dtype))
        group.reduce_scatter(output, parts)
        mine = expected.astype(dtype)[cuts[rank].start : cuts[rank].stop]
        assert (output.array() == mine).all(), (dtype, count)
        group.all_gather(parts, output)
        assert (whole.array() == expected.astype(dtype)).all(), (dtype, count)
for dtype in ("float32", "float16", "bfloat16"):  # the same bits on all ranks, with a divisor
    values = np.random.default_rng(rank).standard_normal(200_003).astype(np.float32)
    if dtype == "bfloat16":
        halves = (values.view(np.uint32) >> 16).astype(np.uint16)
        buffer = Buffer(halves.ctypes.data, halves.size, BFLOAT16, halves)
    else:
        buffer = Buffer.of(values.astype(dtype))
    group.all_reduce(buffer, divisor=3.0)
    mine = buffer.bytes().tobytes()
    assert set(world.allgather(mine)) == {mine}, dtype
    exact = sum(np.random.default_rng(peer).standard_normal(200_003) for peer in range(size)) / 3
    found = (
        (halves.astype(np.uint32) << 16).view(np.float32)
        if dtype == "bfloat16"
        else np.asarray(buffer.array(), np.float32)
    )
    assert np.abs(found - exact).max() < {"float32": 1e-5, "float16": 4e-3}.get(dtype, 0.05), dtype
group.barrier()
print(f"\nrank {rank} of {size} is done", flush=True)
