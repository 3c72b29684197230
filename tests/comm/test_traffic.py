"""What is counted against what was sent, and against the formulas."""

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.comm import traffic
from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Call, Collective
from phalanx.comm.collectives import (
    lanes,
    naive,
    pairwise,
    recursive_halving,
    ring,
    segments,
    tree,
)
from phalanx.comm.collectives.expected_traffic import P2PAlgorithm, expected_traffic
from phalanx.comm.collectives.pairwise import shares_of
from phalanx.comm.dtypes import FLOAT32, ReduceOp
from phalanx.comm.layout import starts_of
from phalanx.comm.traffic import Count, Traffic, TrafficCounter
from phalanx.comm.transport import Transport
from tests.comm.collectives.threads import run
from tests.conftest import Programs, Ranks, done

ITEMSIZE = 4
COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def moved(size: int, program: Callable[[Transport], None]) -> list[Traffic]:
    """By each rank, as its messages say."""
    return [
        Traffic(sum(t.sent), sum(t.received), sum(1 for num_bytes in t.sent if num_bytes))
        for t in run(size, program)
    ]


def zeros(count: int) -> Buffer:
    return Buffer.of(np.zeros(count, np.float32))


def parts_of(counts: list[int]) -> list[Buffer]:
    whole = zeros(sum(counts))
    return [whole.part(a, a + n) for a, n in zip(starts_of(counts), counts, strict=False)]


@settings(deadline=None, max_examples=30)
@given(size=st.integers(1, 7), count=st.integers(0, 40))
def test_all_reduce_moves_what_the_formula_says(size: int, count: int) -> None:
    def program(transport: Transport) -> None:
        pairwise.all_reduce(transport, zeros(count), ReduceOp.SUM, 1.0)

    expected = [traffic.all_reduce_traffic(count, ITEMSIZE, rank, size) for rank in range(size)]
    assert moved(size, program) == expected


ALGORITHMS = {
    "naive": naive.all_reduce,
    "direct": pairwise.all_reduce,
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "halving": recursive_halving.all_reduce,
}


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(deadline=None, max_examples=30)
@given(size=st.integers(1, 9), count=st.integers(0, 60), segment=st.integers(4, 100))
def test_every_algorithm_moves_what_its_formula_says(
    name: P2PAlgorithm, size: int, count: int, segment: int
) -> None:
    def program(transport: Transport) -> None:
        ALGORITHMS[name](transport, zeros(count), ReduceOp.SUM, 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENT_BYTES", segment)
        patch.setattr(pairwise, "SEGMENT_BYTES", 3 * segment)
        expected = [expected_traffic(name, count, ITEMSIZE, rank, size) for rank in range(size)]
        assert moved(size, program) == expected


NODES = st.lists(st.integers(0, 4), min_size=2, max_size=9)


@settings(deadline=None, max_examples=60)
@given(nodes=NODES, count=st.integers(0, 90), chunk=st.integers(4, 60), many=st.booleans())
def test_lanes_move_what_their_formula_says(
    nodes: list[int], count: int, chunk: int, many: bool
) -> None:
    """On nodes of any numbers of ranks; many: more nodes than lanes send to all of at once."""

    def program(transport: Transport) -> None:
        buffer = zeros(count)
        both = [buffer]
        lanes.run(transport, Collective("all_reduce", both, both, ReduceOp.SUM), nodes=nodes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "CHUNK_BYTES", chunk)
        if many:
            patch.setattr(lanes, "FEW_NODES", 2)
        size = len(nodes)
        expected = [
            expected_traffic("lanes", count, ITEMSIZE, rank, size, nodes=nodes)
            for rank in range(size)
        ]
        assert moved(size, program) == [Traffic(*known[:3]) for known in expected]
        is_whole = len(set(nodes)) == size  # every rank alone on its node: all goes to others
        assert not is_whole or all(k.network_sent_bytes == k.sent_bytes for k in expected)


def test_every_algorithm_has_a_formula() -> None:
    assert tuple(ALGORITHMS) == get_args(P2PAlgorithm)


@settings(deadline=None, max_examples=30)
@given(counts=COUNTS)
def test_reduce_scatter_and_all_gather(counts: list[int]) -> None:
    size, num_bytes = len(counts), [ITEMSIZE * count for count in counts]

    def scattering(transport: Transport) -> None:
        output = zeros(counts[transport.rank])
        pairwise.reduce_scatter(transport, output, parts_of(counts), ReduceOp.SUM, 1.0)

    def gathering(transport: Transport) -> None:
        pairwise.all_gather(transport, parts_of(counts), zeros(counts[transport.rank]))

    ranks = range(size)
    assert moved(size, scattering) == [traffic.reduce_scatter_traffic(num_bytes, r) for r in ranks]
    assert moved(size, gathering) == [traffic.all_gather_traffic(num_bytes, r) for r in ranks]


@settings(deadline=None, max_examples=30)
@given(size=st.integers(1, 6), count=st.integers(0, 20), data=st.data())
def test_reduce_to_one(size: int, count: int, data: st.DataObject) -> None:
    """As shared memory does it: shares are reduced by their owners and read by the root."""
    root = data.draw(st.integers(0, size - 1))

    def program(transport: Transport) -> None:
        shares = shares_of(zeros(count), size)
        own = shares[transport.rank]
        pairwise.reduce_scatter(transport, own, shares, ReduceOp.SUM, 1.0)
        pairwise.gather(transport, shares if transport.rank == root else [], own, root=root)

    assert moved(size, program) == [
        traffic.all_reduce_traffic(count, ITEMSIZE, rank, size, root=root) for rank in range(size)
    ]


@settings(deadline=None, max_examples=30)
@given(counts=COUNTS, data=st.data())
def test_from_and_to_one(counts: list[int], data: st.DataObject) -> None:
    size, num_bytes = len(counts), [ITEMSIZE * count for count in counts]
    root = data.draw(st.integers(0, size - 1))

    def gathering(transport: Transport) -> None:
        outputs = parts_of(counts) if transport.rank == root else []
        pairwise.gather(transport, outputs, zeros(counts[transport.rank]), root=root)

    def scattering(transport: Transport) -> None:
        parts = parts_of(counts) if transport.rank == root else []
        pairwise.scatter(transport, zeros(counts[transport.rank]), parts, root=root)

    ranks = range(size)
    assert moved(size, gathering) == [traffic.gather_traffic(num_bytes, r, root) for r in ranks]
    assert moved(size, scattering) == [traffic.scatter_traffic(num_bytes, r, root) for r in ranks]


@settings(deadline=None, max_examples=30)
@given(size=st.integers(1, 6), base=st.integers(0, 5))
def test_all_to_all(size: int, base: int) -> None:
    def count(source: int, dest: int) -> int:
        return base * (source + 2 * dest) % 7

    def program(transport: Transport) -> None:
        rank = transport.rank
        outputs = [zeros(count(peer, rank)) for peer in range(size)]
        pairwise.all_to_all(transport, outputs, [zeros(count(rank, peer)) for peer in range(size)])

    expected = [
        traffic.all_to_all_traffic(
            [ITEMSIZE * count(rank, peer) for peer in range(size)],
            [ITEMSIZE * count(peer, rank) for peer in range(size)],
            rank,
        )
        for rank in range(size)
    ]
    assert moved(size, program) == expected


@pytest.mark.parametrize("size", [1, 2])  # where a tree is nothing but its root and its leaves
def test_broadcast(size: int) -> None:
    for root in range(size):
        assert moved(size, lambda t, root=root: tree.broadcast(t, zeros(5), root=root)) == [
            traffic.broadcast_traffic(20, rank, size, root) for rank in range(size)
        ]


@given(size=st.integers(1, 9), own=st.integers(0, 100), others=st.integers(0, 100))
def test_a_share_of_any_length(size: int, own: int, others: int) -> None:
    """A share owner takes it from all others and hands it to them, and the other way around."""
    others = 0 if size == 1 else others
    by_share = traffic.sharded_all_reduce_traffic(own + others, own, size)
    assert by_share.sent_bytes == by_share.received_bytes == others + (size - 1) * own


def test_what_a_rank_hands_in() -> None:
    calls = {
        Call("all_reduce", FLOAT32, (7,)): 28,
        Call("all_gather", FLOAT32, (1, 2, 3)): 8,  # the own part
        Call("reduce_scatter", FLOAT32, (1, 2, 3)): 24,  # all parts
        Call("gather", FLOAT32, root=0, sent=(5, None, None)): 20,
        Call("scatter", FLOAT32, root=0, expected=(5, None, None)): 0,
        Call("barrier"): 0,
    }
    assert {call: traffic.payload_bytes(call, rank=1) for call in calls} == calls


def test_a_difference_holds_what_came_between() -> None:
    counted = TrafficCounter()
    counted.collective("all_reduce", 100, Traffic(10, 20, 1))
    counted.begin("send", 3)
    before = counted.snapshot()
    counted.collective("all_reduce", 200, Traffic(30, 40, 2))
    counted.begin("receive", 5)
    assert counted - before == TrafficCounter(
        30, 40, 2, payload={"all_reduce": Count(1, 200), "receive": Count(1, 5)}
    )
    assert before == TrafficCounter(
        10, 20, 1, payload={"all_reduce": Count(1, 100), "send": Count(1, 3)}
    )


@pytest.mark.parametrize("nodes", [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 1, 2), (0, 1, 0, 1)])
def test_what_leaves_a_node_arrives_at_others(nodes: tuple[int, ...]) -> None:
    parts = [5, 0, 1000, 33]
    num_remote = [sum(node != own for node in nodes) for own in nodes]

    def moved(formula: Callable[..., Traffic], *words: object) -> list[Traffic]:
        return [formula(*words, *place, nodes) for place in places]

    places: list[tuple[int, ...]] = [(rank,) for rank in range(4)]
    scattered = moved(traffic.reduce_scatter_traffic, parts)
    gathered = moved(traffic.all_gather_traffic, parts)
    assert [m.network_received_bytes for m in scattered] == [
        part * remote for part, remote in zip(parts, num_remote, strict=True)
    ]
    assert [m.network_sent_bytes for m in gathered] == [m.network_received_bytes for m in scattered]
    places = [(rank, 4) for rank in range(4)]
    reduced = moved(traffic.all_reduce_traffic, 400, 4)
    assert [m.network_sent_bytes for m in reduced] == [2 * 400 * n for n in num_remote]
    for root in range(4):
        places = [(rank, root) for rank in range(4)]
        there, back = (
            moved(formula, parts) for formula in (traffic.scatter_traffic, traffic.gather_traffic)
        )
        for sent, received in zip(there, back, strict=True):
            assert sent.network_sent_bytes == received.network_received_bytes
            assert sent.network_received_bytes == received.network_sent_bytes
        for moves in (scattered, gathered, reduced, there, back):
            sent_bytes = sum(m.network_sent_bytes for m in moves)
            assert sent_bytes == sum(m.network_received_bytes for m in moves)


def test_times_are_told_apart_and_are_no_part_of_a_comparison() -> None:
    counted = TrafficCounter()
    counted.add_time(2.0, is_network=True)
    before = counted.snapshot()
    counted.add_time(0.5, is_network=False)
    counted.add_time(0.25, is_network=True)
    between = counted - before
    assert (between.node_s, between.network_s) == (0.5, 0.25)
    assert counted == TrafficCounter()


def test_bytes_by_formula_are_marked() -> None:
    counted = TrafficCounter()
    counted.add(Traffic(10, 20, 1, 4, 8), is_formula=True)
    counted.add(Traffic(1, 2, 1))
    assert counted == TrafficCounter(11, 22, 2, 4, 8, formula_bytes=10)


@pytest.mark.mpi
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_ranks_count_what_the_formulas_say(ranks: Ranks, programs: Programs, count: int) -> None:
    assert done(ranks.mpi(count, programs("traffic.py")), count)
