"""Collectives of a node against what NumPy makes of all ranks' values.

Words: any of `values`, `order`, `mismatch`, `ahead`."""

import itertools
import sys
from typing import Any

import numpy as np
from mpi4py import MPI

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective, Kind
from phalanx.comm.dtypes import DTYPES, ReduceOp
from phalanx.comm.errors import MismatchError
from phalanx.comm.shm import ShmGroup
from phalanx.comm.wait import WaitPolicy
from phalanx.jobs.cores import usable_cores

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()


def join(timeout_s: float = 20) -> ShmGroup:
    policy = WaitPolicy.for_node(size, usable_cores())
    node = ShmGroup.join(world.Dup(), policy=policy, name="test", timeout_s=timeout_s)
    assert node is not None
    return node


def values_of(which: int, count: int, dtype: str = "float32") -> np.ndarray:
    rng = np.random.default_rng([which, count])
    return (100 * rng.standard_normal(count)).astype(dtype)


def in_order(count: int, dtype: str = "float32") -> np.ndarray:
    total = values_of(0, count, dtype)
    for peer in range(1, size):
        total = total + values_of(peer, count, dtype)
    return total


def in_place(kind: Kind, array: np.ndarray, **options: Any) -> Collective:
    return moved(kind, [array], [array], **options)


def moved(
    kind: Kind, inputs: list[np.ndarray], outputs: list[np.ndarray], **options: Any
) -> Collective:
    return Collective(kind, [*map(Buffer.of, inputs)], [*map(Buffer.of, outputs)], **options)


# Around every threshold: nothing, one element, the inline places, one chunk, several.
COUNTS = [0, 1, 3, 2047, 2048, 2049, 5000, 32_768, 32_769, 65_537, 300_001]


def check_all_reduce(node: ShmGroup) -> None:
    for count in COUNTS:
        for shown in ("none", "all", "some"):
            array = values_of(rank, count)
            if shown == "all" or (shown == "some" and rank % 2):
                array = node.allocate(count, np.float32)
                array[:] = values_of(rank, count)
            node.all_reduce(Buffer.of(array))
            assert array.tobytes() == in_order(count).tobytes(), (count, shown)
        for root in range(size):
            array = values_of(rank, count)
            node.run(in_place("reduce", array, op=ReduceOp.SUM, root=root))
            expected = in_order(count) if rank == root else values_of(rank, count)
            assert array.tobytes() == expected.tobytes(), (count, root)
    ones = np.full(10_000, rank + 1, np.int64)
    node.all_reduce(Buffer.of(ones), ReduceOp.MAX)
    assert (ones == size).all()
    node.all_reduce(Buffer.of(ones), divisor=float(size))
    assert (ones == size).all()


def check_movement(node: ShmGroup) -> None:
    for count in COUNTS:
        for root in range(size):
            array = values_of(rank, count)
            node.run(in_place("broadcast", array, root=root))
            assert array.tobytes() == values_of(root, count).tobytes()
        counts = [count + 7 * peer for peer in range(size)]
        outputs = [np.empty(n, np.float32) for n in counts]
        node.run(moved("all_gather", [values_of(rank, counts[rank])], outputs))
        for peer, output in enumerate(outputs):
            assert output.tobytes() == values_of(peer, counts[peer]).tobytes()
        whole = values_of(rank, sum(counts))
        starts = np.cumsum([0, *counts])
        parts = [Buffer.of(whole[a:b]) for a, b in itertools.pairwise(starts)]
        output = np.empty(counts[rank], np.float32)
        node.run(Collective("reduce_scatter", parts, [Buffer.of(output)], ReduceOp.SUM))
        expected = in_order(sum(counts))[starts[rank] : starts[rank + 1]]
        assert output.tobytes() == expected.tobytes()
        check_exchange(node, count)


def check_exchange(node: ShmGroup, count: int) -> None:
    """all_to_all, gather and scatter of parts of different sizes."""

    def part(sender: int, receiver: int) -> np.ndarray:
        return values_of(10 + sender * size + receiver, (count + sender) * (receiver % 2))

    parts = [Buffer.of(part(rank, peer)) for peer in range(size)]
    outputs = [np.empty_like(part(peer, rank)) for peer in range(size)]
    node.run(Collective("all_to_all", parts, [Buffer.of(o) for o in outputs]))
    assert all(o.tobytes() == part(p, rank).tobytes() for p, o in enumerate(outputs))
    for root in range(size):
        mine, places = values_of(rank, count + rank), None
        if rank == root:
            places = [np.empty(count + peer, np.float32) for peer in range(size)]
        node.run(moved("gather", [mine], places or [], root=root))
        if places is not None:
            assert all(
                p.tobytes() == values_of(i, count + i).tobytes() for i, p in enumerate(places)
            )
        received = np.empty(count + rank, np.float32)
        node.run(moved("scatter", places or [], [received], root=root))
        assert received.tobytes() == mine.tobytes()


def values() -> None:
    node = join()
    check_all_reduce(node)
    check_movement(node)
    for name, dtype in DTYPES.items():
        if dtype.numpy is None or dtype.kind == "bool":
            continue
        array = np.arange(3000).astype(dtype.numpy)
        node.all_reduce(Buffer.of(array))
        terms = [np.arange(3000).astype(dtype.numpy)] * size
        expected = sum(terms[1:], start=terms[0])
        if not dtype.is_half:
            assert array.tobytes() == expected.tobytes(), name
    node.barrier()


def order() -> None:
    """Collectives in an order that depends on chance, with ranks that dawdle by chance."""
    node = join()
    shared, own = np.random.default_rng(1), np.random.default_rng(rank)
    window = node.allocate(100_000, np.float32)
    for step in range(1500):
        count = int(shared.choice([1, 100, 3000, 40_000, 100_000]))
        root = int(shared.integers(size))
        if own.random() < 0.05:
            own.random(int(own.integers(200_000)))  # late
        array = window[:count] if shared.random() < 0.5 else np.empty(count, np.float32)
        array[:] = step + rank
        match int(shared.integers(4)):
            case 0:
                node.all_reduce(Buffer.of(array))
                assert (array == size * step + size * (size - 1) / 2).all()
            case 1:
                node.run(in_place("broadcast", array, root=root))
                assert (array == step + root).all()
            case 2:
                outputs = [np.empty(count, np.float32) for _ in range(size)]
                node.run(moved("all_gather", [array], outputs))
                assert all((o == step + peer).all() for peer, o in enumerate(outputs))
            case 3:
                node.barrier()


def mismatch() -> None:
    def expect(name: str, *actions: Any) -> None:
        node = join()
        try:
            actions[rank % len(actions)](node)
        except MismatchError as error:
            print(f"\n{name}: {error}", flush=True)
        else:
            raise AssertionError(f"{name} went through")

    def floats(count: int, dtype: str = "float32") -> Buffer:
        return Buffer.of(np.ones(count, dtype))

    def scattered(divisor: float) -> Collective:
        parts = [floats(8)] * size
        return Collective("reduce_scatter", parts, [floats(8)], ReduceOp.SUM, divisor)

    expect("count", lambda n: n.all_reduce(floats(10)), lambda n: n.all_reduce(floats(11)))
    expect("large", lambda n: n.all_reduce(floats(50_000)), lambda n: n.all_reduce(floats(50_001)))
    expect("dtype", lambda n: n.all_reduce(floats(8)), lambda n: n.all_reduce(floats(8, "float64")))

    def be_root(node: ShmGroup) -> None:
        node.run(
            Collective("broadcast", [floats(8)], [floats(8)], root=rank)
        )  # nobody waits, so nobody notices yet
        node.barrier()

    expect("root", be_root)
    expect("kind", lambda n: n.all_reduce(floats(8)), lambda n: n.barrier())
    expect(
        "average",
        lambda n: n.all_reduce(floats(8)),
        lambda n: n.all_reduce(floats(8), divisor=float(size)),
    )
    expect(
        "divisor",
        lambda n: n.run(scattered(0.5)),
        lambda n: n.run(scattered(0.25)),
    )
    expect(
        "operation",
        lambda n: n.all_reduce(floats(8)),
        lambda n: n.all_reduce(floats(8), ReduceOp.MAX),
    )


for word in sys.argv[1:]:
    {"values": values, "order": order, "mismatch": mismatch}[word]()
print(f"\nrank {rank} of {size} is done", flush=True)
