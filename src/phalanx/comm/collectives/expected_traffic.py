"""Expected traffic of each all-reduce algorithm per rank: formulas, tested against counts.

Not for half types, whose partial sums travel as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from phalanx.comm.collectives import lanes, naive, pairwise, recursive_halving, segments, tree
from phalanx.comm.layout import chunks, share_of
from phalanx.comm.select import Algorithm
from phalanx.comm.traffic import (
    Traffic,
    all_gather_traffic,
    all_reduce_traffic,
    reduce_scatter_traffic,
    sum_traffic,
)

P2PAlgorithm = Literal["naive", "direct", "ring", "tree", "halving"]


def expected_traffic(
    algorithm: Algorithm,
    count: int,
    itemsize: int,
    rank: int,
    size: int,
    *,
    nodes: Sequence[int] = (),
) -> Traffic:
    """Return the traffic of `rank` of `size` ranks, for `count` elements of `itemsize` bytes.

    nodes: the number of each rank's node; empty: all are on one. What goes to other nodes is told
    apart where the algorithm sends to every peer alike, or by lanes.
    """
    several = len(set(nodes)) > 1
    match algorithm:
        case "shared" | "library":
            return all_reduce_traffic(count, itemsize, rank, size, nodes)
        case "short":
            return all_gather_traffic([count * itemsize] * size, rank, nodes)
        case "bruck":  # the bytes of `short` in few messages
            moved = all_gather_traffic([count * itemsize] * size, rank)
            return moved._replace(messages=(size - 1).bit_length() if moved.messages else 0)
        case "lanes":
            return _by_lanes(count, itemsize, rank, nodes or [0] * size)
        case "direct" if several:
            return _between_nodes(count, itemsize, rank, nodes)
        case _:
            return _FORMULAS[algorithm](count, itemsize, rank, size)


def _by_naive(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    peers = size - 1 if rank == naive.ROOT else 1
    return Traffic(peers * count * itemsize, peers * count * itemsize, peers if count else 0)


def _by_direct(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    cuts = chunks(count, max(1, pairwise.SEGMENT_BYTES // itemsize))
    return sum_traffic(
        [all_reduce_traffic(cut.stop - cut.start, itemsize, rank, size) for cut in cuts]
    )


def _between_nodes(count: int, itemsize: int, rank: int, nodes: Sequence[int]) -> Traffic:
    """Return the traffic of `direct`, which goes in the chunks of lanes of single ranks."""
    size = len(nodes)
    num_chunks = lanes.num_chunks_of_all_reduce(count * itemsize, 1, size)
    counts = [len(share_of(number, num_chunks, count)) for number in range(num_chunks)]
    return sum_traffic([_of_a_lane(chunk, itemsize, rank, size, nodes) for chunk in counts])


def _by_lanes(count: int, itemsize: int, rank: int, nodes: Sequence[int]) -> Traffic:
    """Return the traffic of each chunk: reduced on the node slice by slice, each slice by its lane,
    and handed out on the node again."""
    by_node = lanes.ranks_by_node(nodes)
    node = next(number for number, ranks in enumerate(by_node) if rank in ranks)
    peers, num_nodes = by_node[node], len(by_node)
    num_lanes, local = min(map(len, by_node)), peers.index(rank)
    several = len(nodes) > num_nodes
    num_chunks = lanes.num_chunks_of_all_reduce(count * itemsize, num_lanes, num_nodes)
    share_bytes = count * itemsize // (num_chunks * num_lanes * num_nodes)
    halves = several and lanes.is_halved(share_bytes, num_nodes)
    moves = []
    for number in range(num_chunks):
        chunk = len(share_of(number, num_chunks, count))
        slices = [len(share_of(lane, num_lanes, chunk)) for lane in range(num_lanes)]
        slices += [0] * (len(peers) - num_lanes)
        if several:
            num_bytes = [slice_count * itemsize for slice_count in slices]
            moves.append(reduce_scatter_traffic(num_bytes, local))
            moves.append(all_gather_traffic(num_bytes, local))
        if local >= num_lanes:
            continue
        if halves:
            moves.append(_all_to_other_nodes(_in_rounds(slices[local], itemsize, node, num_nodes)))
        else:
            places = range(num_nodes)
            moves.append(_of_a_lane(slices[local], itemsize, node, num_nodes, places))
    return sum_traffic(moves)


def _of_a_lane(count: int, itemsize: int, rank: int, size: int, nodes: Sequence[int]) -> Traffic:
    """Return the traffic of a vector that ranks reduce in as many rounds as lanes do."""
    if lanes.num_rounds_of(size) == 1:
        return all_gather_traffic([count * itemsize] * size, rank, nodes)
    return all_reduce_traffic(count, itemsize, rank, size, nodes)


def _in_rounds(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    """Return the traffic of `recursive_halving.reduce_in_rounds`, whose rounds are a message."""
    return _by_halving(
        count, itemsize, rank, size, segments_of=lambda num_bytes, _: bool(num_bytes)
    )


def _all_to_other_nodes(moved: Traffic) -> Traffic:
    sent_bytes, received_bytes, *_ = moved
    return moved._replace(network_sent_bytes=sent_bytes, network_received_bytes=received_bytes)


def _by_ring(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    """Return the traffic of two rounds of the ring, each of all shares but one."""
    shares = [len(share_of(peer, size, count)) * itemsize for peer in range(size)]
    everything = sum(shares)
    sent = 2 * everything - shares[rank] - shares[(rank + 1) % size]
    received = 2 * everything - shares[(rank - 1) % size] - shares[rank]
    cut = [_segments(share, itemsize) for share in shares]
    handed_on = sum(1 for share in shares if share) - (shares[(rank + 1) % size] > 0)
    return Traffic(sent, received, sum(cut) - cut[rank] + handed_on)


def _by_tree(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    """Return the traffic to and from the parent and each child."""
    num_bytes = count * itemsize
    neighbours = len(tree.children_of(rank, size)) + (tree.parent_of(rank) is not None)
    messages = neighbours * _segments(num_bytes, itemsize)
    return Traffic(neighbours * num_bytes, neighbours * num_bytes, messages)


def _by_halving(
    count: int,
    itemsize: int,
    rank: int,
    size: int,
    segments_of: Callable[[int, int], int] | None = None,
) -> Traffic:
    """segments_of: messages that carry so many bytes; None: as `_segments`."""
    num_messages = segments_of or _segments
    workers = recursive_halving.workers_of(size)
    num_bytes = count * itemsize
    if rank not in workers:
        return Traffic(num_bytes, num_bytes, num_messages(num_bytes, itemsize))
    position = workers.index(rank)
    shares = [share_of(peer, len(workers), count) for peer in range(len(workers))]
    moves = []
    for step in recursive_halving.halving_steps(position, len(workers)):
        given = _elements(shares, step.given) * itemsize
        kept = _elements(shares, step.kept) * itemsize
        moves.append(Traffic(given, kept, num_messages(given, itemsize)))
        moves.append(Traffic(kept, given, 1 if kept else 0))
    if rank > 0 and rank - 1 not in workers:
        moves.append(Traffic(num_bytes, num_bytes, 1 if num_bytes else 0))
    return sum_traffic(moves)


def _elements(shares: list[range], numbers: range) -> int:
    return sum(len(shares[number]) for number in numbers)


def _segments(num_bytes: int, itemsize: int) -> int:
    """Return the number of messages that carry these bytes."""
    largest = max(1, segments.SEGMENT_BYTES // itemsize) * itemsize
    return -(-num_bytes // largest)


_FORMULAS: Mapping[P2PAlgorithm, Callable[[int, int, int, int], Traffic]] = {
    "naive": _by_naive,
    "direct": _by_direct,
    "ring": _by_ring,
    "tree": _by_tree,
    "halving": _by_halving,
}
