"""Expected traffic of each all-reduce algorithm per rank: formulas, tested against counts.

Not for half types, whose partial sums travel as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from phalanx.comm.collectives import lanes, naive, pairwise, recursive_halving, segments, tree
from phalanx.comm.layout import chunks, share_of
from phalanx.comm.select import Algorithm
from phalanx.comm.traffic import Traffic, all_gather_traffic, all_reduce_traffic, sum_traffic

P2PAlgorithm = Literal["naive", "direct", "ring", "tree", "halving"]


def expected_traffic(
    algorithm: Algorithm, count: int, itemsize: int, rank: int, size: int, *, num_nodes: int = 1
) -> Traffic | None:
    """Return the traffic of `rank` of `size` ranks, for `count` elements of `itemsize` bytes; None
    where no formula exists."""
    match algorithm:
        case "shared" | "library":
            return all_reduce_traffic(count, itemsize, rank, size)
        case "short":
            return all_gather_traffic([count * itemsize] * size, rank)
        case "bruck":  # the bytes of `short` in few messages
            moved = all_gather_traffic([count * itemsize] * size, rank)
            return moved._replace(messages=(size - 1).bit_length() if moved.messages else 0)
        case "lanes":
            return None
        case "direct" if num_nodes > 1:
            return _by_direct_between_nodes(count, itemsize, rank, size)
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


def _by_direct_between_nodes(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    num_chunks = lanes.num_chunks_of_all_reduce(count * itemsize, 1, size)
    counts = [len(share_of(number, num_chunks, count)) for number in range(num_chunks)]
    if lanes.num_rounds_of(size) == 1:
        vectors = ([chunk * itemsize] * size for chunk in counts)
        return sum_traffic([all_gather_traffic(vector, rank) for vector in vectors])
    return sum_traffic([all_reduce_traffic(chunk, itemsize, rank, size) for chunk in counts])


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


def _by_halving(count: int, itemsize: int, rank: int, size: int) -> Traffic:
    workers = recursive_halving.workers_of(size)
    num_bytes = count * itemsize
    if rank not in workers:
        return Traffic(num_bytes, num_bytes, _segments(num_bytes, itemsize))
    position = workers.index(rank)
    shares = [share_of(peer, len(workers), count) for peer in range(len(workers))]
    moves = []
    for step in recursive_halving.halving_steps(position, len(workers)):
        given = _elements(shares, step.given) * itemsize
        kept = _elements(shares, step.kept) * itemsize
        moves.append(Traffic(given, kept, _segments(given, itemsize)))
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
