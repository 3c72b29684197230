"""Seconds of an all-reduce of gradients: by the algorithm that the run itself chooses. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from phalanx.comm.collectives import lanes, recursive_halving
from phalanx.comm.collectives.expected_traffic import expected_traffic
from phalanx.comm.dtypes import DTYPES
from phalanx.comm.select import Algorithm, Topology, choose_all_reduce
from phalanx.comm.traffic import Traffic
from phalanx.gradients.buckets import MESSAGE_OVERHEAD_S
from phalanx.plan.machine import SumTime

_DTYPE_OF = {2: DTYPES["float16"], 4: DTYPES["float32"], 8: DTYPES["float64"]}
FALLBACK_BYTES_PER_S, _FALLBACK_LATENCY_S = 4e9, 20e-6
"""Sum in memory of a node of which nothing was measured: three passes over memory of 12 GB/s."""


SLICE_S = 3e-3
"""Seconds of a core that a rank has before another one gets it, about: of the RNN."""


class LinkSpeed(NamedTuple):
    """Speed of the links out of a node: bytes a second over all ports, seconds of a message."""

    bandwidth_bytes_per_s: float
    latency_s: float
    overhead_s: float = MESSAGE_OVERHEAD_S


class RankLayout(NamedTuple):
    """Ranks on nodes, consecutive ranks beside each other."""

    ranks: int
    ranks_per_node: int

    @property
    def num_nodes(self) -> int:
        return -(-self.ranks // self.ranks_per_node)

    @property
    def on_one_node(self) -> bool:
        return self.num_nodes == 1

    @property
    def local_ranks(self) -> int:
        """Return the ranks of the fullest node."""
        return min(self.ranks, self.ranks_per_node)

    def topology(self, *, is_emulated: bool = False) -> Topology:
        nodes = tuple(rank // self.ranks_per_node for rank in range(self.ranks))
        return Topology(nodes=nodes, shares_memory=self.on_one_node, is_emulated=is_emulated)


class PlannedSum(NamedTuple):
    """An all-reduce of a rank's `num_bytes`, and what it takes."""

    algorithm: Algorithm
    num_bytes: int
    traffic: Traffic
    rounds: int
    node_s: float
    """Seconds in the memory of a node."""
    node_bytes: float
    """Bytes that leave a node, all its ranks together."""
    coding_s: float = 0.0
    """Processor seconds of compression, beside the messages."""

    def seconds(self, link: LinkSpeed | None) -> float:
        """Return how long it takes. link: between the nodes; None: all ranks are on one."""
        if link is None:
            return self.node_s + self.coding_s
        wait_s = self.rounds * (link.latency_s + link.overhead_s)
        sending_s = self.node_bytes / link.bandwidth_bytes_per_s
        return self.node_s + wait_s + max(sending_s, self.coding_s)


def plan_sum(
    num_bytes: int,
    itemsize: int,
    layout: RankLayout,
    sums: Sequence[SumTime],
    *,
    message_sums: Sequence[SumTime] | None = None,
    turns: float = 1.0,
) -> PlannedSum:
    """Return the all-reduce of a vector, of rank 0, which sends no less than any.

    sums: measured ones in the memory of a node. message_sums: the same by messages within it, of
    ranks that an emulated link makes nodes of their own; None: links are real. turns: ranks that
    share a core, each of which waits until the others have had theirs.
    """
    count, topology = num_bytes // itemsize, layout.topology(is_emulated=message_sums is not None)
    dtype = _DTYPE_OF[itemsize]
    algorithm = choose_all_reduce(
        num_bytes, dtype, topology=topology, requested="auto", is_native=True
    ).algorithm
    moved = expected_traffic(algorithm, count, itemsize, 0, layout.ranks, nodes=topology.nodes)
    waits_s = (turns - 1) * SLICE_S
    if layout.on_one_node:
        on_node_s = memory_sum_s(num_bytes, layout.ranks, sums)
        return PlannedSum(algorithm, num_bytes, moved, 0, on_node_s + waits_s, 0.0)
    nodes, local = layout.num_nodes, layout.local_ranks
    rounds, node_s = _rounds(algorithm, layout.ranks, nodes), 0.0
    if algorithm == "lanes":  # They run beside the network but for the first and the last chunk
        chunks = lanes.num_chunks_of_all_reduce(num_bytes, local, nodes)
        node_s = memory_sum_s(num_bytes, local, sums) / chunks
    elif message_sums:  # the last chunk, which is passed on and summed once it has come
        chunks = lanes.num_chunks_of_all_reduce(num_bytes, 1, nodes)
        node_s = memory_sum_s(num_bytes, layout.ranks, message_sums) / chunks
    sent = moved.network_sent_bytes or moved.sent_bytes
    node_s += waits_s
    return PlannedSum(algorithm, num_bytes, moved, rounds, node_s, float(sent * local))


class Coding(NamedTuple):
    """A compression whose bytes are a fixed part of float32."""

    bytes: float
    """Part of the bytes that is sent."""
    passes: float
    """Passes over the vector in memory that coding takes, of each rank; tuned on the GPT."""


CODINGS: Mapping[str, Coding] = {
    "fp16": Coding(1 / 2, 4.0),
    "bf16": Coding(1 / 2, 4.0),
    "int8": Coding(1 / 4, 6.0),
}


def coded(planned: PlannedSum, coding: Coding, memory_bytes_per_s: float) -> PlannedSum:
    """Return a sum whose messages are coded: sending and coding go on beside each other, but for
    what is coded before the first message."""
    sent, received = (int(coding.bytes * each) for each in planned.traffic[:2])
    traffic = planned.traffic._replace(sent_bytes=sent, received_bytes=received)
    coding_s = coding.passes * planned.num_bytes / memory_bytes_per_s
    return planned._replace(
        traffic=traffic,
        rounds=max(2, planned.rounds) if planned.rounds else 0,  # owners, then all
        node_bytes=coding.bytes * planned.node_bytes,
        coding_s=coding_s,
    )


def _rounds(algorithm: Algorithm, ranks: int, num_nodes: int) -> int:
    """Return the rounds of messages, each of which waits for the one before."""
    match algorithm:
        case "short":
            return 1
        case "bruck":
            return (ranks - 1).bit_length()
        case "halving":
            return recursive_halving.num_rounds_of(ranks)
        case "lanes" if lanes.is_halved(0, num_nodes):
            return recursive_halving.num_rounds_of(num_nodes)
        case _:
            return lanes.num_rounds_of(num_nodes)


def memory_sum_s(num_bytes: int, ranks: int, sums: Sequence[SumTime]) -> float:
    """Return the seconds of a sum in the memory of a node: measured at this size if it was, else
    between or beyond measured ones by their rate, which a cache may break.

    Of another number of ranks: by the bytes that a rank moves, 2(p-1)/p of the vector.
    """
    if ranks < 2:
        return 0.0
    if not sums:
        return _FALLBACK_LATENCY_S + num_bytes / FALLBACK_BYTES_PER_S
    nearest = min({each.ranks for each in sums}, key=lambda known: abs(math.log(known / ranks)))
    measured = sorted((each.bytes, each.seconds) for each in sums if each.ranks == nearest)
    moved = (ranks - 1) / ranks / ((nearest - 1) / nearest)
    return moved * _between(num_bytes, measured)


def _between(num_bytes: int, measured: Sequence[tuple[int, float]]) -> float:
    below = [pair for pair in measured if pair[0] <= num_bytes]
    above = [pair for pair in measured if pair[0] >= num_bytes]
    if not below:
        return above[0][1] * max(0.05, num_bytes / above[0][0])
    if not above:
        return below[-1][1] * num_bytes / below[-1][0]
    (low, low_s), (high, high_s) = below[-1], above[0]
    if low == high:
        return low_s
    share = math.log(num_bytes / low) / math.log(high / low)
    return math.exp((1 - share) * math.log(low_s) + share * math.log(high_s))
