"""Collectives of many ranks by few peers: right on any number of ranks, for parts of any length."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives import bruck, cells, lanes, pairwise, segments, tree
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.errors import MismatchError
from phalanx.comm.transport import Transport
from tests.comm.collectives.threads import run

SIZES = st.sampled_from([1, 2, 3, 5, 8, 9, 17])
NODES = [
    (0,),
    (0, 1, 2),
    (0, 0, 1, 1),
    (0, 1, 0, 1, 0),
    (0, 0, 0, 1, 2, 2),
    tuple(range(12)),
    tuple(rank // 3 for rank in range(20)),
]


def values(seed: int, count: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng([seed, count]).standard_normal(count).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@settings(deadline=None, max_examples=12)
@given(size=SIZES, count=st.sampled_from([0, 1, 7, 300]), root=st.integers(0, 16))
def test_sums_have_the_bits_of_the_order_of_the_ranks(
    dtype: str, size: int, count: int, root: int
) -> None:
    def program(transport: Transport) -> None:
        mine = [values(transport.rank, count, dtype) for _ in range(4)]
        first, second, third, fourth = map(Buffer.of, mine)
        bruck.all_reduce(transport, first, ReduceOp.SUM, 3.0)
        pairwise.all_to_all_reduce(transport, second, ReduceOp.SUM, 3.0)
        assert mine[0].tobytes() == mine[1].tobytes()
        bruck.reduce(transport, third, ReduceOp.SUM, 3.0, root=root % size)
        pairwise.reduce(transport, fourth, ReduceOp.SUM, 3.0, root=root % size)
        assert mine[2].tobytes() == mine[3].tobytes()
        counts = [peer % 3 for peer in range(size)]
        parts = [Buffer.of(values(9 * transport.rank + p, n, dtype)) for p, n in enumerate(counts)]
        results = [np.zeros(counts[transport.rank], dtype) for _ in range(2)]
        for reduce_scatter, result in zip(
            (bruck.reduce_scatter, pairwise.reduce_scatter), results, strict=True
        ):
            reduce_scatter(transport, Buffer.of(result), parts, ReduceOp.SUM, 2.0)
        assert results[0].tobytes() == results[1].tobytes()

    run(size, program)


@settings(deadline=None, max_examples=12)
@given(size=SIZES, root=st.integers(0, 16))
def test_parts_arrive_long_and_short(size: int, root: int) -> None:
    """A cell of one of 17 ranks has room for some 4,000 numbers."""
    root %= size

    def count(source: int, dest: int) -> int:
        return (source * 3 + dest * 5) % 7 * (40_000 if (source + dest) % 5 == 0 else 1)

    def part(source: int, dest: int, filled: float) -> Buffer:
        return Buffer.of(np.full(count(source, dest), filled, np.float32))

    def program(transport: Transport) -> None:
        rank, ranks = transport.rank, range(size)
        outputs = [part(source, rank, -1) for source in ranks]
        bruck.all_to_all(transport, outputs, [part(rank, d, rank * 100 + d) for d in ranks])
        for source, output in enumerate(outputs):
            assert (output.array() == source * 100 + rank).all()
        gathered = [part(source, 1, -1) for source in ranks] if rank == root else []
        bruck.gather(transport, gathered, part(rank, 1, rank), root=root)
        for source, output in enumerate(gathered):
            assert (output.array() == source).all()
        scattered = part(rank, 2, -1)
        given_parts = [part(dest, 2, dest) for dest in ranks] if rank == root else []
        bruck.scatter(transport, scattered, given_parts, root=root)
        assert (scattered.array() == rank).all()
        every = [Buffer.of(np.zeros(source % 3, np.float32)) for source in ranks]
        bruck.all_gather(transport, every, Buffer.of(np.full(rank % 3, rank, np.float32)))
        for source, output in enumerate(every):
            assert (output.array() == source).all()

    run(size, program)


def test_a_part_of_another_length_is_named() -> None:
    def program(transport: Transport) -> None:
        part = Buffer.of(np.zeros(3 if transport.rank == 1 else 2, np.float32))
        outputs = [Buffer.of(np.zeros(2, np.float32)) for _ in range(3)]
        bruck.gather(transport, outputs if transport.rank == 0 else [], part, root=0)

    with pytest.raises(MismatchError, match="rank 0 expected 8 bytes from rank 1 and got 12"):
        run(3, program)


def test_cells_of_many_ranks_are_small() -> None:
    class Place:
        def __init__(self, size: int) -> None:
            self.rank, self.size = 0, size

        def scratch(self, count: int, dtype: object) -> Buffer:
            assert dtype is not None
            return Buffer.of(np.zeros(count, np.uint8))

    assert cells.Cells.of_unknown(Place(1024), 1).longest == 248
    assert cells.Cells.of_unknown(Place(16_384), 1).longest == 16


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("num_segments", [1, 3, 1000])
def test_a_tree_crosses_the_network_once_for_each_node(
    nodes: tuple[int, ...], num_segments: int
) -> None:
    ranks = range(len(nodes))
    for root in ranks:
        places = [tree.place_in_tree(nodes, root, rank, num_segments) for rank in ranks]
        assert places[root][0] is None
        edges = [(rank, child) for rank in ranks for child in places[rank][1]]
        assert all(places[child][0] == rank for rank, child in edges)
        assert len(edges) == len(nodes) - 1
        assert sum(nodes[a] != nodes[b] for a, b in edges) == len(set(nodes)) - 1
        reached, left = {root}, [root]
        while left:
            children = places[left.pop()][1]
            reached |= set(children)
            left += children
        assert reached == set(ranks)


def test_many_nodes_are_a_chain_for_many_segments() -> None:
    nodes = tuple(rank // 2 for rank in range(24))
    assert [tree.place_in_tree(nodes, 0, rank, 1000)[1] for rank in (0, 2, 22)] == [
        [2, 1],
        [4, 3],
        [23],
    ]
    assert tree.place_in_tree(nodes, 0, 0, 1)[1] == [16, 8, 4, 2, 1]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("count", [0, 1, 300])
def test_trees_in_segments(
    monkeypatch: pytest.MonkeyPatch, dtype: str, nodes: tuple[int, ...], count: int
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 64)
    size = len(nodes)

    def whole(rank: int) -> np.ndarray:
        return (np.arange(count) % 9 + rank).astype(dtype)

    def program(transport: Transport) -> None:
        for root in {0, size // 2, size - 1}:
            mine = whole(transport.rank)
            tree.broadcast(transport, Buffer.of(mine), root=root, nodes=nodes)
            assert (mine == whole(root)).all()
            mine = whole(transport.rank)
            tree.reduce(transport, Buffer.of(mine), ReduceOp.SUM, 1.0, root=root, nodes=nodes)
            total = sum(whole(rank) for rank in range(size))
            assert (mine == (total if transport.rank == root else whole(transport.rank))).all()

    run(size, program)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("num_nodes", [2, 3, 5, 7])
@pytest.mark.parametrize("chunk", [64, 10**6])
def test_lanes_that_halve(
    monkeypatch: pytest.MonkeyPatch, dtype: str, num_nodes: int, chunk: int
) -> None:
    monkeypatch.setattr(lanes, "FEW_NODES", 1)
    monkeypatch.setattr(lanes, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(lanes, "LARGEST_BYTES", 3 * chunk)
    nodes = [*range(num_nodes), *range(num_nodes), 0]
    arrays = [(np.arange(300) % 9 + rank).astype(dtype) for rank in range(len(nodes))]
    total = sum(array.copy() for array in arrays)

    def program(transport: Transport) -> None:
        both = (Buffer.of(arrays[transport.rank]),)
        collective = Collective("all_reduce", both, both, ReduceOp.SUM)
        lanes.run(transport, collective, nodes=nodes)

    run(len(nodes), program)
    for array in arrays:
        assert (array == total).all()
