"""Collectives of a node whose ranks dawdle, and some that do not match.

Words: `order`, `mismatch`."""

import sys
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective, Kind
from phalanx.comm.dtypes import ReduceOp
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


def in_place(kind: Kind, array: np.ndarray, **options: Any) -> Collective:
    return moved(kind, [array], [array], **options)


def moved(
    kind: Kind, inputs: list[np.ndarray], outputs: list[np.ndarray], **options: Any
) -> Collective:
    return Collective(kind, [*map(Buffer.of, inputs)], [*map(Buffer.of, outputs)], **options)


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
        with pytest.raises(MismatchError) as raised:
            actions[rank % len(actions)](node)
        print(f"\n{name}: {raised.value}", flush=True)

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
    {"order": order, "mismatch": mismatch}[word]()
print(f"\nrank {rank} of {size} is done", flush=True)
