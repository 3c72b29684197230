"""Each rank: every call of `Group`, for every dtype, operation, root and many sizes.

The truth is made by every rank for itself, from the values that each rank must have. What is called
"device" has its buffers in plain memory too: MPI does not care, and the calls are those for a GPU.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from host_memory import HostMemory
from pretended import group_on

from phalanx.comm import array_kernels, communicators, messages
from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives import library
from phalanx.comm.dtypes import (
    DTYPES,
    FLOAT32,
    INT32,
    UINT8,
    DType,
    ReduceOp,
    check_operation,
    opaque,
)
from phalanx.comm.group import Group
from phalanx.comm.wait import WaitTimeoutError
from phalanx.comm.world import World

SIZES = [0, 1, 3, 1000, 40_001]
# In shared memory: nothing, one element, the inline places, one chunk, several.
THRESHOLDS = [0, 1, 3, 2047, 2048, 2049, 5000, 32_768, 32_769, 65_537, 300_001]
ALGORITHMS = ["auto", "direct", "naive", "ring", "tree", "halving", "lanes", "library"]
MOVED = [*DTYPES.values(), opaque("float8_e4m3fn", 1), opaque("record", 12)]


def values(seed: list[int], count: int, dtype: DType) -> Buffer:
    """Elements that every rank can make again."""
    copy = empty(count, dtype)
    copy.bytes()[:] = made(tuple(seed), count, dtype).bytes()
    return copy


@cache
def made(seed: tuple[int, ...], count: int, dtype: DType) -> Buffer:
    """Elements at random, which takes longer than most collectives: made once for all."""
    random = np.random.default_rng(seed)
    if dtype.kind == "float":
        wide = Buffer.of(random.standard_normal(count).astype(np.float32))
        if dtype is FLOAT32:
            return wide
        other = empty(count, dtype)
        if dtype.is_half:
            array_kernels.narrow(wide, other)
        else:
            other.array()[:] = wide.array()
        return other
    if dtype.kind == "complex":
        pair = random.standard_normal((2, count))
        return Buffer.of((pair[0] + 1j * pair[1]).astype(dtype.numpy))
    if dtype.kind == "bool":
        return Buffer.of(random.random(count) < 0.5)
    memory = random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    return Buffer(memory.ctypes.data, count, dtype, memory)


def empty(count: int, dtype: DType) -> Buffer:
    memory = np.zeros(count * dtype.itemsize, np.uint8)
    return Buffer(memory.ctypes.data, count, dtype, memory)


def same(a: Buffer, b: Buffer) -> bool:
    return a.bytes().tobytes() == b.bytes().tobytes()


Cases = list[tuple[DType, ReduceOp, float]]
Counts = Sequence[int]


def reductions() -> Cases:
    cases = []
    for dtype, op in itertools.product(DTYPES.values(), ReduceOp):
        try:
            check_operation(dtype, op)
        except TypeError:
            continue
        cases.append((dtype, op, 1.0))
        if op == ReduceOp.SUM:
            cases.append((dtype, op, 3.0))
    return cases


CASES = reductions()


def in_rank_order(terms: list[Buffer], op: ReduceOp, divisor: float) -> Buffer:
    truth = empty(terms[0].count, terms[0].dtype)
    array_kernels.reduce_terms(terms, truth, op, divisor)
    return truth


def check_reductions(group: Group) -> None:
    for (dtype, op, divisor), count in itertools.product(CASES, SIZES):
        terms = [values([rank, count], count, dtype) for rank in range(group.size)]
        truth = in_rank_order(terms, op, divisor)
        mine = values([group.rank, count], count, dtype)
        what = f"{dtype.name} {op.name} {count} / {divisor}"
        # Between nodes sums may go by nodes first; `direct` always goes by ranks.
        algorithm = "direct" if group.name == "network" else None
        group.all_reduce(mine, op, divisor=divisor, algorithm=algorithm)
        assert right(mine, truth, op), f"all_reduce {what}"
        root = count % group.size
        mine = values([group.rank, count], count, dtype)
        group.reduce(mine, op, root=root, divisor=divisor)
        expected = truth if group.rank == root else terms[group.rank]
        assert right(mine, expected, op), f"reduce {what}"


def in_node_order(terms: list[Buffer], op: ReduceOp, divisor: float) -> Buffer:
    """The sums of nodes of which each has every second rank, as `collectives/lanes.py` makes them:
    half types are rounded twice."""
    is_rounded = terms[0].dtype.is_half and op is ReduceOp.SUM
    first, then = (divisor, 1.0) if is_rounded else (1.0, divisor)
    sums = [in_rank_order(terms[node::2], op, first) for node in range(2)]
    return in_rank_order(sums, op, then)


def check_reduce_scatter(group: Group, cases: Cases = CASES, bases: Counts = (0, 5, 3000)) -> None:
    has_lanes = group.name == "network" and group.size == 4
    for (dtype, op, divisor), base in itertools.product(cases, bases):
        counts = [base + rank * 7 for rank in range(group.size)]
        given = [
            [values([rank, part], counts[part], dtype) for part in range(group.size)]
            for rank in range(group.size)
        ]
        terms = [parts[group.rank] for parts in given]
        truth = (in_node_order if has_lanes else in_rank_order)(terms, op, divisor)
        parts = [values([group.rank, part], counts[part], dtype) for part in range(group.size)]
        output = empty(counts[group.rank], dtype)
        group.reduce_scatter(output, parts, op, divisor=divisor)
        assert right(output, truth, op), f"reduce_scatter {dtype.name} {op.name}"
        for part, kept in zip(parts, given[group.rank], strict=True):
            assert same(part, kept), "reduce_scatter changed what it was given"
        group.reduce_scatter(parts[group.rank], parts, op, divisor=divisor)
        assert right(parts[group.rank], truth, op), "reduce_scatter in place"


def check_movement(
    group: Group, dtypes: Sequence[DType] = MOVED, bases: Counts = (0, 1, 1000)
) -> None:
    rank, size = group.rank, group.size
    for dtype, count in itertools.product(dtypes, bases):
        for root in range(size):
            mine = values([rank, root], count, dtype)
            group.broadcast(mine, root=root)
            assert same(mine, values([root, root], count, dtype)), f"broadcast {dtype.name}"
        counts = [count + peer for peer in range(size)]
        truth = [values([peer], counts[peer], dtype) for peer in range(size)]
        outputs = [empty(n, dtype) for n in counts]
        group.all_gather(outputs, truth[rank])
        assert all(map(same, outputs, truth)), f"all_gather {dtype.name}"
        group.all_gather(outputs, outputs[rank])
        assert all(map(same, outputs, truth)), f"all_gather in place {dtype.name}"
        check_one_to_all(group, dtype, truth)
        check_all_to_all(group, dtype, lambda source, dest, n=count: n and n * (source + dest) % 7)
        check_all_to_all(group, dtype, lambda source, dest, n=count: (n + source) * (dest % 2))


def check_one_to_all(group: Group, dtype: DType, truth: list[Buffer]) -> None:
    for root in range(group.size):
        at_root = group.rank == root
        outputs = [empty(part.count, dtype) for part in truth] if at_root else None
        group.gather(outputs, truth[group.rank], root=root)
        assert outputs is None or all(map(same, outputs, truth)), f"gather {dtype.name}"
        output = empty(truth[group.rank].count, dtype)
        group.scatter(output, truth if at_root else None, root=root)
        assert same(output, truth[group.rank]), f"scatter {dtype.name}"


def check_all_to_all(group: Group, dtype: DType, counted: Callable[[int, int], int]) -> None:
    """counted: elements from one rank to another."""
    rank, everyone = group.rank, range(group.size)
    parts = [values([rank, dest], counted(rank, dest), dtype) for dest in everyone]
    truth = [values([source, rank], counted(source, rank), dtype) for source in everyone]
    outputs = [empty(part.count, dtype) for part in truth]
    group.all_to_all(outputs, parts)
    assert all(map(same, outputs, truth)), f"all_to_all {dtype.name}"


def check_thresholds(group: Group) -> None:
    """In shared memory, with buffers that all can see, or none, or some of them."""
    assert group.shm is not None
    for count in THRESHOLDS:
        terms = [values([rank, count], count, FLOAT32) for rank in range(group.size)]
        truth = in_rank_order(terms, ReduceOp.SUM, 1.0)
        for shown in ("none", "all", "some"):
            mine = values([group.rank, count], count, FLOAT32)
            if shown == "all" or (shown == "some" and group.rank % 2):
                array = group.shm.allocate(count, np.float32)
                array[:] = mine.array()
                mine = Buffer.of(array)
            group.all_reduce(mine)
            assert same(mine, truth), (count, shown)
        for root in range(group.size):
            mine = values([group.rank, count], count, FLOAT32)
            group.reduce(mine, root=root)
            assert same(mine, truth if group.rank == root else terms[group.rank]), (count, root)
    check_reduce_scatter(group, [(FLOAT32, ReduceOp.SUM, 1.0)], THRESHOLDS)
    check_movement(group, [FLOAT32], THRESHOLDS)


def check_algorithms(group: Group) -> None:
    """The right values, the same bits on every rank and in every run."""
    for algorithm, (dtype, op, divisor) in itertools.product(ALGORITHMS, CASES):
        for count in (0, 1, 3, 1000):
            terms = [values([rank, count], count, dtype) for rank in range(group.size)]
            truth = in_rank_order(terms, op, divisor)
            results = []
            for _ in range(2):
                mine = values([group.rank, count], count, dtype)
                group.all_reduce(mine, op, divisor=divisor, algorithm=algorithm)
                results.append(mine)
            what = f"{algorithm} {dtype.name} {op.name} {count}"
            assert same(*results), f"{what}: other bits in another run"
            everyone = [empty(count, dtype) for _ in range(group.size)]
            group.all_gather(everyone, results[0])
            assert all(same(results[0], other) for other in everyone), f"{what}: ranks differ"
            assert close(results[0], truth), what


def right(buffer: Buffer, truth: Buffer, op: ReduceOp) -> bool:
    """The same bits; of complex products nearly, since compilers may fuse their sums."""
    if buffer.dtype.kind == "complex" and op == ReduceOp.PRODUCT:
        return close(buffer, truth)
    return same(buffer, truth)


def close(buffer: Buffer, truth: Buffer) -> bool:
    if buffer.dtype.is_half:
        both = [Buffer.of(np.empty(b.count, np.float32)) for b in (buffer, truth)]
        array_kernels.widen(buffer, both[0])
        array_kernels.widen(truth, both[1])
        return np.allclose(both[0].array(), both[1].array(), rtol=1e-2, atol=1e-2)
    if buffer.dtype.kind in ("float", "complex"):
        return np.allclose(buffer.array(), truth.array(), rtol=1e-5, atol=1e-5)
    return same(buffer, truth)


def check_messages(group: Group) -> None:
    rank, size = group.rank, group.size
    after, before = (rank + 1) % size, (rank - 1) % size
    for source, tag in itertools.product([before, None], [0, 7]):
        output = empty(1000, INT32)
        receiving = group.receive(output, source=source, tag=tag)
        sending = group.send(values([rank, tag], 1000, INT32), dest=after, tag=tag)
        receiving.wait()
        sending.wait(timeout_s=10)
        assert sending.test()
        assert receiving.source == before
        assert same(output, values([before, tag], 1000, INT32))
        group.barrier()
    # tags keep messages apart, whatever the order
    outputs = [empty(1, UINT8) for _ in range(3)]
    sends = [group.send(values([tag], 1, UINT8), dest=after, tag=tag) for tag in range(3)]
    for tag in (2, 0, 1):
        group.receive(outputs[tag], source=before, tag=tag).wait()
    for tag, send in enumerate(sends):
        send.wait()
        assert same(outputs[tag], values([tag], 1, UINT8))


def check_subgroups(group: Group) -> None:
    others = group.subgroup(range(group.size)[::-1], name="backwards")
    assert others.rank == group.size - 1 - group.rank
    assert others.members == tuple(range(group.size))[::-1]
    color = group.rank % 2
    mine = [rank for rank in range(group.size) if rank % 2 == color]
    for cycle in range(200):
        half = group.subgroup(mine, name=f"half {cycle}", tag=color)
        if cycle % 50 == 0:
            count = Buffer.of(np.ones(3, np.float32))
            half.all_reduce(count)
            assert count.array().tolist() == [len(mine)] * 3
            inner = half.subgroup([0], name="alone") if half.rank == 0 else None
            if inner:
                assert inner.members == (mine[0],)
                inner.close()
        half.close()
    check_messages(others)
    check_movement(others)
    others.close()


def check_groups_closed_in_other_orders(group: Group) -> None:
    """As PyTorch 2.15 destroys them. Each was once awaited for a second, in vain."""
    made = [group.subgroup(range(group.size), name=f"one of {n}", tag=n) for n in range(30)]
    in_vain, wait_until = [], communicators.wait_until

    def counted(*arguments: Any, **options: Any) -> None:
        try:
            wait_until(*arguments, **options)
        except WaitTimeoutError:
            in_vain.append(arguments)
            raise

    communicators.wait_until = counted
    for one in made if group.rank % 2 else reversed(made):
        one.close()
    communicators.wait_until = wait_until
    assert len(in_vain) < 5, len(in_vain)


def check_wrong_arguments(group: Group) -> None:
    three = Buffer.of(np.zeros(3, bool))
    size = group.size
    refused = [
        (TypeError, lambda: group.all_reduce(three, ReduceOp.SUM)),
        (TypeError, lambda: group.all_reduce(empty(1, opaque("float8", 1)))),
        (ValueError, lambda: group.broadcast(three, root=size)),
        (ValueError, lambda: group.send(three, dest=-1)),
        (ValueError, lambda: group.all_gather([three] * (size + 1), three)),
        (ValueError, lambda: group.gather([empty(1, INT32)] * size, three, root=group.rank)),
        (ValueError, lambda: group.scatter(three, None, root=group.rank)),
        (ValueError, lambda: group.subgroup([size], name="nobody")),
        (ValueError, lambda: group.subgroup([0, 0], name="twice")),
    ]
    for kind, call in refused:
        with pytest.raises(kind, match=r"."):
            call()
    group.barrier()


def check_device(group: Group) -> None:
    fast = group._fast
    with group.on_device(HostMemory()):
        group.barrier()
        for check in (check_reductions, check_reduce_scatter, check_movement):
            check(group)
    assert group._fast is fast


CHECKS = {
    "reductions": (check_reductions, check_reduce_scatter),
    "movement": (check_movement, check_messages, check_subgroups, check_wrong_arguments),
    "thresholds": (check_thresholds,),
    "closing": (check_groups_closed_in_other_orders,),
    "algorithms": (check_algorithms,),
    "device": (check_device,),
}


def main() -> None:
    world = World.create(timeout_s=30)
    if sys.argv[1] == "pieces":
        messages.MAX_BYTES, library.MAX_COUNT = 64, 100
    group = world.group
    if sys.argv[1] not in ("memory", "device"):
        group = group_on([rank % 2 for rank in range(world.size)])
    group.barrier()
    assert group.share({"from": group.rank}, root=group.size - 1) == {"from": group.size - 1}
    for word in sys.argv[2:]:
        for check in CHECKS[word]:
            check(group)
    group.close()
    with pytest.raises(RuntimeError, match=f"group {group.name} is closed"):
        group.barrier()
    world.close()
    print(f"rank {world.rank} of {world.size} is done", flush=True)


main()
