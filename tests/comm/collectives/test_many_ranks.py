"""What collectives cost each of 64, 1,024 and 16,384 ranks: counted, with the routes of a run."""

import sys
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import Collective, Kind
from phalanx.comm.collectives import pairwise
from phalanx.comm.dtypes import ReduceOp
from phalanx.comm.select import FEW_RANKS
from tests.comm.collectives.counting import Counted, cost_of

MIB = 2**20
LAYOUTS = [(4, 16), (8, 8), (64, 1), (1, 64), (64, 16), (1000, 1), (1024, 16)]
"""Nodes, and ranks on each."""
KINDS: list[Kind] = [
    *("barrier", "all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"),
    *("all_to_all", "gather", "scatter"),
]
ROOT = 5


def call(kind: Kind, num_bytes: int, rank: int, size: int) -> Collective:
    """Return a collective of `num_bytes` a part, as `rank` calls it."""
    part = Buffer.of(np.zeros(num_bytes // 4, np.float32))
    parts, at_root = [part] * size, rank == ROOT
    match kind:
        case "barrier":
            return Collective("barrier")
        case "all_reduce":
            return Collective(kind, (part,), (part,), ReduceOp.SUM)
        case "reduce":
            return Collective(kind, (part,), (part,), ReduceOp.SUM, root=ROOT)
        case "broadcast":
            return Collective(kind, (part,), (part,), root=ROOT)
        case "reduce_scatter":
            return Collective(kind, parts, (part,), ReduceOp.SUM)
        case "all_gather":
            return Collective(kind, (part,), parts)
        case "gather":
            return Collective(kind, (part,), parts if at_root else (), root=ROOT)
        case "scatter":
            return Collective(kind, parts if at_root else (), (part,), root=ROOT)
        case _:
            return Collective(kind, parts, parts)


def costs(kind: Kind, num_bytes: int, num_nodes: int, local_size: int) -> Iterator[Counted]:
    """Yield the costs of all ranks up to 64, of more those that differ most."""
    size = num_nodes * local_size
    nodes = [rank // local_size for rank in range(size)]
    some = {0, 1, ROOT, ROOT + 1, ROOT + size // 2, size - 2, size - 1}
    for rank in range(size) if size <= 64 else sorted(some):
        yield cost_of(call(kind, num_bytes, rank, size), rank, nodes)


def most_peers(size: int) -> int:
    return 2 * (size - 1).bit_length()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_nodes", "local_size"), LAYOUTS)
def test_few_bytes_have_few_peers(kind: Kind, num_nodes: int, local_size: int) -> None:
    size = num_nodes * local_size
    for cost in costs(kind, 4, num_nodes, local_size):
        assert len(cost.peers) <= most_peers(size)
        assert cost.num_messages <= most_peers(size)
        assert cost.scratch_bytes <= MIB


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_bytes", [4, 2048, 300_000])
@pytest.mark.parametrize("layout", [(3, 7), (8, 8), (21, 1)])
def test_what_is_sent_is_received(kind: Kind, num_bytes: int, layout: tuple[int, int]) -> None:
    """Of every pair, message by message, whichever way is chosen."""
    sent, received = defaultdict(list), defaultdict(list)
    for rank, cost in enumerate(costs(kind, num_bytes, *layout)):
        for dest, size in cost.sent:
            sent[rank, dest].append(size)
        for source, size in cost.received:
            received[source, rank].append(size)
    assert sent == received


@pytest.mark.parametrize(("num_nodes", "local_size"), [(1, FEW_RANKS), *LAYOUTS])
def test_a_root_needs_two_segments_of_memory(num_nodes: int, local_size: int) -> None:
    for cost in costs("reduce", 16 * MIB, num_nodes, local_size):
        assert cost.scratch_bytes <= 2 * pairwise.SEGMENT_BYTES


@pytest.mark.parametrize(("num_nodes", "local_size"), [(16, 4), (64, 16), (1000, 16)])
@pytest.mark.parametrize("num_bytes", [4096, MIB])
def test_lanes_over_many_nodes(num_nodes: int, local_size: int, num_bytes: int) -> None:
    if num_nodes < 64 and num_bytes == MIB:
        pytest.skip("its messages are long enough")
    for cost in costs("all_reduce", num_bytes, num_nodes, local_size):
        assert cost.num_messages <= 2 * num_nodes.bit_length()
        assert len(cost.peers) <= num_nodes.bit_length()


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_a_long_vector_leaves_a_node_once(kind: Kind) -> None:
    size, local_size = 1024, 16
    nodes = [rank // local_size for rank in range(size)]
    for rank in (0, ROOT, 16, size - 1):
        cost = cost_of(call(kind, 16 * MIB, rank, size), rank, nodes)
        for messages in (cost.sent, cost.received):
            away = sum(size for peer, size in messages if nodes[peer] != nodes[rank])
            assert away <= 16 * MIB


def table() -> Iterator[str]:
    """Yield the rows of docs/measurements.md: python -m tests.comm.collectives.test_many_ranks."""
    asked: list[tuple[Kind, int]] = [
        *((kind, 4) for kind in KINDS),
        *(("all_reduce", MIB), ("reduce", 16 * MIB), ("broadcast", 16 * MIB)),
    ]
    for kind, num_bytes in asked:
        cells = []
        for num_nodes in (4, 64, 1024):
            found = list(costs(kind, num_bytes, num_nodes, 16))
            peers, messages = max(len(c.peers) for c in found), max(c.num_messages for c in found)
            scratch = max(cost.scratch_bytes for cost in found)
            cells.append(f"{peers:,} / {messages:,} / {scratch / 1024:,.0f}")
        yield f"| {kind}, {num_bytes:,} B | {' | '.join(cells)} |"


if __name__ == "__main__":
    for row in table():
        sys.stdout.write(row + "\n")
