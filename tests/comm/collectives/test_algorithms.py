"""Every algorithm on messages, on any number of ranks, against a loop over the ranks; no MPI."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective
from phalanx.comm.collectives import (
    bruck,
    dissemination,
    lanes,
    naive,
    pairwise,
    recursive_halving,
    ring,
    segments,
    stages,
    tree,
)
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.layout import starts_of
from phalanx.comm.transport import Transport
from tests.comm.collectives.threads import run

AllReduce = Callable[[Transport, Buffer, ReduceOp, float], None]


def by_lanes(nodes_of: Callable[[int], Sequence[int]]) -> AllReduce:
    """Return the all-reduce by lanes. nodes_of: the node of each of so many ranks."""

    def all_reduce(transport: Transport, buffer: Buffer, op: ReduceOp, divisor: float) -> None:
        both = (buffer,)
        collective = Collective("all_reduce", both, both, op, divisor)
        lanes.run(transport, collective, nodes=nodes_of(transport.size))

    return all_reduce


lone_ranks = by_lanes(range)  # as `direct` between nodes
ALL_REDUCES = {
    "direct": pairwise.all_reduce,
    "lone ranks": lone_ranks,
    "short": pairwise.all_to_all_reduce,
    "bruck": bruck.all_reduce,
    "naive": naive.all_reduce,
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "halving": recursive_halving.all_reduce,
    "two nodes": by_lanes(lambda size: [rank * 2 // size for rank in range(size)]),
    "alternating nodes": by_lanes(lambda size: [rank % 3 for rank in range(size)]),
}
SIZES = st.integers(1, 9)
COUNTS = st.one_of(st.integers(0, 12), st.integers(100, 1000))


def values(rank: int, count: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng([rank, count]).standard_normal(count).astype(dtype)


def reduced(
    all_reduce: AllReduce, size: int, count: int, dtype: str, divisor: float = 1.0
) -> list[np.ndarray]:
    """What each rank has at the end."""
    arrays = [values(rank, count, dtype) for rank in range(size)]

    def program(transport: Transport) -> None:
        all_reduce(transport, Buffer.of(arrays[transport.rank]), ReduceOp.SUM, divisor)

    run(size, program)
    return arrays


@pytest.mark.parametrize("name", ALL_REDUCES)
@settings(deadline=None, max_examples=25)
@given(size=SIZES, count=COUNTS, divisor=st.sampled_from([1.0, 3.0]))
def test_all_reduce(name: str, size: int, count: int, divisor: float) -> None:
    results = reduced(ALL_REDUCES[name], size, count, "float32", divisor)
    truth = sum(values(rank, count).astype(np.float64) for rank in range(size)) / divisor
    np.testing.assert_allclose(results[0], truth, rtol=1e-4, atol=1e-5)
    again = reduced(ALL_REDUCES[name], size, count, "float32", divisor)
    assert len({result.tobytes() for result in (*results, *again)}) == 1, "bits differ"


@pytest.mark.parametrize("name", ALL_REDUCES)
@pytest.mark.parametrize("size", [2, 3, 6])
def test_half_types_are_rounded_once(name: str, size: int) -> None:
    """1 and many halves of its last digit: added in float16 they would all be lost."""
    small = np.float16(2**-12)
    arrays = [np.full(100, 1 if rank == 0 else small, np.float16) for rank in range(size)]

    def program(transport: Transport) -> None:
        mine = Buffer.of(arrays[transport.rank])
        ALL_REDUCES[name](transport, mine, ReduceOp.SUM, 1.0)

    run(size, program)
    exact = np.float32(1) + (size - 1) * np.float32(small)
    for array in arrays:
        assert (array == np.float16(exact)).all()


@pytest.mark.parametrize("name", ["direct", "lone ranks", "short", "bruck", "naive"])
@settings(deadline=None, max_examples=20)
@given(size=SIZES, count=COUNTS)
def test_direct_sums_in_the_order_of_the_ranks(name: str, size: int, count: int) -> None:
    truth = values(0, count)
    for rank in range(1, size):
        truth = truth + values(rank, count)
    assert reduced(ALL_REDUCES[name], size, count, "float32")[0].tobytes() == truth.tobytes()


def test_long_vectors_go_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reduced(pairwise.all_reduce, 3, 1000, "float32")[0]
    monkeypatch.setattr(pairwise, "SEGMENT_BYTES", 400)
    assert reduced(pairwise.all_reduce, 3, 1000, "float32")[0].tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@settings(deadline=None, max_examples=15)
@given(size=SIZES, count=st.integers(0, 300), chunk=st.integers(1, 200))
def test_chunks_change_nothing(dtype: str, size: int, count: int, chunk: int) -> None:
    whole = reduced(pairwise.all_reduce, size, count, dtype, 3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "CHUNK_BYTES", chunk)
        parts = reduced(lone_ranks, size, count, dtype, 3.0)
    assert len({result.tobytes() for result in (*whole, *parts)}) == 1, "bits differ"


@pytest.mark.parametrize("name", ["ring", "tree", "halving"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@settings(deadline=None, max_examples=15)
@given(size=SIZES, count=st.integers(0, 300), segment=st.integers(4, 200))
def test_segments_change_nothing(
    name: str, dtype: str, size: int, count: int, segment: int
) -> None:
    whole = reduced(ALL_REDUCES[name], size, count, dtype, 3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_BYTES", segment)
        parts = reduced(ALL_REDUCES[name], size, count, dtype, 3.0)
    assert len({result.tobytes() for result in (*whole, *parts)}) == 1, "bits differ"


@settings(deadline=None, max_examples=20)
@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=7), in_place=st.booleans())
def test_reduce_scatter_and_all_gather(counts: list[int], in_place: bool) -> None:
    size, starts = len(counts), starts_of(counts)
    truth = sum(values(rank, sum(counts)).astype(np.float64) for rank in range(size))

    def program(transport: Transport) -> None:
        rank = transport.rank
        given_values = values(rank, sum(counts))
        whole = Buffer.of(given_values.copy())
        parts = [whole.part(a, a + n) for a, n in zip(starts, counts, strict=False)]
        output = parts[rank] if in_place else Buffer.of(np.zeros(counts[rank], np.float32))
        pairwise.reduce_scatter(transport, output, parts, ReduceOp.SUM, 1.0)
        mine = truth[starts[rank] : starts[rank + 1]]
        np.testing.assert_allclose(output.array(), mine, rtol=1e-4, atol=1e-5)
        if not in_place:
            assert whole.array().tobytes() == given_values.tobytes(), "parts were changed"
        gathered = Buffer.of(np.zeros(sum(counts), np.float32))
        outputs = [gathered.part(a, a + n) for a, n in zip(starts, counts, strict=False)]
        pairwise.all_gather(transport, outputs, output)
        np.testing.assert_allclose(gathered.array(), truth, rtol=1e-4, atol=1e-5)

    run(size, program)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.sampled_from([(2, 2), (2, 3), (3, 2), (1, 3), (3, 1)]),
    is_alternating=st.booleans(),
    dtype=st.sampled_from(["float32", "float16"]),
    chunk=st.integers(1, 200),
    in_place=st.booleans(),
    data=st.data(),
)
def test_lanes_of_any_parts_in_chunks(
    shape: tuple[int, int],
    is_alternating: bool,
    dtype: str,
    chunk: int,
    in_place: bool,
    data: st.DataObject,
) -> None:
    """All three collectives, in as many chunks as it takes, with parts of any counts."""
    num_nodes, local_size = shape
    size = num_nodes * local_size
    nodes = [rank % num_nodes if is_alternating else rank // local_size for rank in range(size)]
    counts = data.draw(st.lists(st.integers(0, 60), min_size=size, max_size=size))
    starts, count = starts_of(counts), sum(counts)
    whole = sum(np.arange(count, dtype=np.float64) % 40 + rank for rank in range(size))

    def program(transport: Transport) -> None:
        rank = transport.rank
        given_values = (np.arange(count) % 40 + rank).astype(dtype)
        vector = Buffer.of(given_values.copy())
        parts = [vector.part(a, a + n) for a, n in zip(starts, counts, strict=False)]
        output = parts[rank] if in_place else Buffer.of(np.zeros(counts[rank], dtype))
        scatter = Collective("reduce_scatter", parts, (output,), ReduceOp.SUM)
        lanes.run(transport, scatter, nodes=nodes)
        assert (output.array() == whole[starts[rank] : starts[rank + 1]]).all()
        if not in_place:
            assert vector.array().tobytes() == given_values.tobytes(), "parts were changed"
        gathered = Buffer.of(np.zeros(count, dtype))
        outputs = [gathered.part(a, a + n) for a, n in zip(starts, counts, strict=False)]
        lanes.run(transport, Collective("all_gather", (output,), outputs), nodes=nodes)
        assert (gathered.array() == whole).all()
        again = Buffer.of(given_values)
        all_reduce = Collective("all_reduce", (again,), (again,), ReduceOp.SUM)
        lanes.run(transport, all_reduce, nodes=nodes)
        assert (again.array() == whole).all()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "CHUNK_BYTES", chunk)
        patch.setattr(lanes, "LARGEST_BYTES", 3 * chunk)
        run(size, program)


def sum_by_lanes(vectors: list[np.ndarray], by_node: list[list[int]], divisor: float) -> np.ndarray:
    """Sums of the nodes in the order of the ranks, then of these; half types are rounded twice, and
    divided by the first time, where nodes have several ranks."""
    dtype, is_half = vectors[0].dtype, vectors[0].dtype == np.float16
    on_node = divisor if is_half and len(by_node) < len(vectors) else 1.0
    node_sums = []
    for ranks in by_node:
        total = vectors[ranks[0]].astype(np.float32)
        for rank in ranks[1:]:
            total = total + vectors[rank].astype(np.float32)
        node_sums.append((total / np.float32(on_node)).astype(dtype))
    total = node_sums[0].astype(np.float32)
    for node_sum in node_sums[1:]:
        total = total + node_sum.astype(np.float32)
    return (total / np.float32(divisor / on_node)).astype(dtype)


@settings(deadline=None, max_examples=40)
@given(
    nodes=st.lists(st.integers(0, 2), min_size=1, max_size=7),
    dtype=st.sampled_from(["float32", "float16"]),
    divisor=st.sampled_from([1.0, 4.0]),
    chunk=st.integers(1, 300),
    count=COUNTS,
)
def test_bits_of_sums_by_lanes(
    nodes: list[int], dtype: str, divisor: float, chunk: int, count: int
) -> None:
    """The documented order of sums, on nodes with any numbers of ranks and in any chunks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "CHUNK_BYTES", chunk)
        results = reduced(by_lanes(lambda _: nodes), len(nodes), count, dtype, divisor)
    vectors = [values(rank, count, dtype) for rank in range(len(nodes))]
    truth = sum_by_lanes(vectors, lanes.ranks_by_node(nodes), divisor)
    assert {result.tobytes() for result in results} == {truth.tobytes()}


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 0, 1, 1, 2, 2), (0, 0, 1)])
def test_half_types_travel_as_they_are(nodes: tuple[int, ...]) -> None:
    """And a mean of large values is finite, though neither node's sum is."""
    size, count = len(nodes), 600
    arrays = [np.full(count, 40_000, np.float16) for _ in range(size)]

    def program(transport: Transport) -> None:
        both = (Buffer.of(arrays[transport.rank]),)
        mean = Collective("all_reduce", both, both, ReduceOp.SUM, size)
        lanes.run(transport, mean, nodes=nodes)

    sent = sum(num_bytes for rank in run(size, program) for num_bytes in rank.sent)
    num_nodes = len(set(nodes))
    on_nodes = sum(2 * (nodes.count(node) - 1) for node in set(nodes))
    assert sent == 2 * count * (on_nodes + 2 * (num_nodes - 1))
    for array in arrays:
        np.testing.assert_allclose(array, 40_000, rtol=1e-3)


@given(num_chunks=st.integers(1, 40), num_stages=st.integers(1, 3))
def test_chunks_go_through_all_stages_in_order(num_chunks: int, num_stages: int) -> None:
    order = list(stages.stages(num_chunks, num_stages))
    assert sorted(order) == [(s, c) for s in range(num_stages) for c in range(num_chunks)]
    place = {step: number for number, step in enumerate(order)}
    for stage, chunk in order:
        assert stage == 0 or place[stage - 1, chunk] < place[stage, chunk]
        assert chunk == 0 or place[stage, chunk - 1] < place[stage, chunk]
        if stage and (reused := (stage - 1, chunk + stages.DEPTH + 1)) in place:
            assert place[reused] > place[stage, chunk], "its memory is used again too early"


@settings(deadline=None, max_examples=30)
@given(size=SIZES, data=st.data())
def test_broadcast(size: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, size - 1))

    def program(transport: Transport) -> None:
        mine = values(transport.rank, 100)
        tree.broadcast(transport, Buffer.of(mine), root=root)
        assert np.array_equal(mine, values(root, 100))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_BYTES", data.draw(st.integers(4, 500)))
        run(size, program)


@given(size=st.integers(1, 40))
def test_the_tree_reaches_everybody_once(size: int) -> None:
    children = [child for rank in range(size) for child in tree.children_of(rank, size)]
    assert sorted(children) == list(range(1, size))
    for rank in range(size):
        assert all(tree.parent_of(child) == rank for child in tree.children_of(rank, size))


def test_the_tree_as_drawn() -> None:
    assert [tree.children_of(rank, 8) for rank in range(8)] == [
        *([1, 2, 4], [], [3], []),
        *([5, 6], [], [7], []),
    ]


def test_halving_as_drawn() -> None:
    assert recursive_halving.workers_of(6) == [1, 3, 4, 5]
    assert recursive_halving.workers_of(8) == list(range(8))
    assert recursive_halving.halving_steps(2, 4) == [
        recursive_halving.HalvingStep(0, kept=range(2, 4), given=range(0, 2)),
        recursive_halving.HalvingStep(3, kept=range(2, 3), given=range(3, 4)),
    ]


@given(exponent=st.integers(0, 6))
def test_partners_of_halving_agree(exponent: int) -> None:
    size = 2**exponent
    steps = [recursive_halving.halving_steps(position, size) for position in range(size)]
    for position, mine in enumerate(steps):
        assert len(mine) == exponent
        for number, step in enumerate(mine):
            other = steps[step.partner][number]
            assert (other.partner, other.kept, other.given) == (position, step.given, step.kept)
        if mine:
            assert mine[-1].kept == range(position, position + 1)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_what_is_sent(size: int) -> None:
    """Numbers of messages and bytes, as the formulas say."""
    count = 1024
    expected = {
        "direct": (2 * (size - 1), 2 * (size - 1) * count * 4 // size),
        "ring": (2 * (size - 1), 2 * (size - 1) * count * 4 // size),
        "halving": (2 * int(math.log2(size)), 2 * (size - 1) * count * 4 // size),
    }
    for name, (messages, num_bytes) in expected.items():
        arrays = [values(rank, count) for rank in range(size)]
        transports = run(
            size,
            lambda transport, arrays=arrays, name=name: ALL_REDUCES[name](
                transport, Buffer.of(arrays[transport.rank]), ReduceOp.SUM, 1.0
            ),
        )
        for transport in transports:
            assert (len(transport.sent), sum(transport.sent)) == (messages, num_bytes), name


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_nobody_leaves_a_barrier_before_all_have_come(size: int) -> None:
    come: set[int] = set()

    def program(transport: Transport) -> None:
        come.add(transport.rank)
        dissemination.barrier(transport)
        assert len(come) == size

    run(size, program)
