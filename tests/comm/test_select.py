"""Which algorithm is chosen, and what a user can say about it."""

import pytest

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import AlgorithmOption, Collective, Kind
from phalanx.comm.dtypes import BFLOAT16, FLOAT32
from phalanx.comm.select import (
    MANY_RANKS,
    SHORT_BYTES,
    Route,
    Topology,
    choose_all_reduce,
    choose_route,
    explain,
    keeps_order_in_parts,
    requested_algorithm,
)

ONE_NODE = Topology(nodes=(0, 0, 0, 0), shares_memory=True)
NO_MEMORY = Topology(nodes=(0, 0, 0, 0), shares_memory=False)
TWO_NODES = Topology(nodes=(0, 0, 1, 1), shares_memory=False)
UNEVEN_NODES = Topology(nodes=(0, 0, 1), shares_memory=False)
UNEVEN_LANES = Topology(nodes=(0, 0, 0, 1, 1), shares_memory=False)
LONE_RANKS = Topology(nodes=tuple(range(MANY_RANKS)), shares_memory=False)
ONE_RANK = Topology(nodes=(0,), shares_memory=False)
ON_DEVICE = Topology(nodes=(0, 0), shares_memory=True, on_device=True)
EMULATED = Topology(nodes=(0, 1), shares_memory=False, is_emulated=True)
LONG = 2**20

ROUTES: list[tuple[Topology, Kind, AlgorithmOption, Route]] = [
    # topology, kind, requested: the route
    (ONE_NODE, "barrier", "auto", "shared"),
    (ONE_NODE, "all_reduce", "auto", "shared"),
    (ONE_NODE, "all_reduce", "shared", "shared"),
    (ONE_NODE, "all_reduce", "ring", "ring"),
    (ONE_NODE, "all_reduce", "library", "library"),
    (ONE_NODE, "scatter", "auto", "shared"),
    (NO_MEMORY, "barrier", "auto", "direct"),
    (NO_MEMORY, "all_reduce", "auto", "direct"),
    (TWO_NODES, "all_reduce", "auto", "lanes"),
    (TWO_NODES, "all_gather", "auto", "lanes"),
    (TWO_NODES, "reduce_scatter", "auto", "lanes"),
    (TWO_NODES, "all_to_all", "auto", "direct"),
    (UNEVEN_NODES, "all_reduce", "auto", "direct"),
    (UNEVEN_NODES, "all_gather", "auto", "direct"),
    (UNEVEN_LANES, "all_reduce", "auto", "lanes"),
    (UNEVEN_LANES, "all_gather", "auto", "direct"),
    (LONE_RANKS, "all_reduce", "auto", "halving"),
    (EMULATED, "all_reduce", "library", "direct"),
    (ONE_RANK, "barrier", "auto", "single"),
    (ONE_RANK, "all_reduce", "auto", "single"),
    (ONE_RANK, "all_reduce", "ring", "single"),
    (ONE_RANK, "all_to_all", "auto", "single"),
    (ON_DEVICE, "barrier", "auto", "device"),
    (ON_DEVICE, "all_reduce", "auto", "device"),
    (ON_DEVICE, "all_reduce", "ring", "device"),
    (ON_DEVICE, "gather", "auto", "device"),
]


@pytest.mark.parametrize(("topology", "kind", "requested", "route"), ROUTES)
def test_the_route_follows_from_the_group(
    topology: Topology, kind: Kind, requested: AlgorithmOption, route: Route
) -> None:
    both = (Buffer(0, LONG, FLOAT32),)
    collective = Collective(kind, both, both, algorithm=requested)
    assert choose_route(topology, collective, is_native=True) == route


def chosen(num_bytes: int, topology: Topology, requested: AlgorithmOption = "auto") -> str:
    return choose_all_reduce(
        num_bytes, FLOAT32, topology=topology, requested=requested, is_native=True
    ).algorithm


def test_memory_comes_first_then_topology() -> None:
    assert chosen(LONG, ONE_NODE) == "shared"
    assert chosen(LONG, NO_MEMORY) == "direct"
    assert chosen(LONG, TWO_NODES) == "lanes"
    assert chosen(LONG, LONE_RANKS) == "halving"


def test_short_vectors_take_one_round() -> None:
    assert chosen(SHORT_BYTES // 4, TWO_NODES) == "short"
    assert chosen(SHORT_BYTES // 4 + 1, TWO_NODES) == "lanes"


@pytest.mark.parametrize(
    "requested", ["direct", "naive", "ring", "tree", "halving", "lanes", "library"]
)
def test_the_user_decides(requested: AlgorithmOption) -> None:
    assert requested_algorithm({"PHALANX_ALL_REDUCE": requested}) == requested
    assert chosen(4, ONE_NODE, requested) == requested


def test_what_cannot_be() -> None:
    with pytest.raises(
        ValueError, match="is 'rings'; use one of auto, shared, direct, naive, ring"
    ):
        requested_algorithm({"PHALANX_ALL_REDUCE": "rings"})
    with pytest.raises(ValueError, match="do not share memory"):
        chosen(4, TWO_NODES, "shared")
    choice = choose_all_reduce(
        LONG, BFLOAT16, topology=TWO_NODES, requested="library", is_native=False
    )
    assert choice.algorithm == "direct"
    assert "no reduction of bfloat16" in choice.reason


def test_nothing_said_means_auto() -> None:
    assert requested_algorithm({}) == requested_algorithm({"PHALANX_ALL_REDUCE": ""}) == "auto"


def test_the_choice_is_explained() -> None:
    assert explain(TWO_NODES, "auto", FLOAT32, is_native=True) == [
        f"from 4 bytes: short (no more than {SHORT_BYTES} bytes of all ranks: one round)",
        "from 64 KiB: lanes (every rank of a node sends a slice to the other nodes)",
    ]


@pytest.mark.parametrize(
    ("topology", "kind", "requested", "keeps"),
    [
        (ONE_NODE, "all_reduce", "auto", True),
        (ONE_NODE, "all_reduce", "ring", False),  # of which each share has an order
        (ONE_NODE, "reduce", "ring", True),
        (NO_MEMORY, "all_reduce", "auto", True),
        (TWO_NODES, "all_reduce", "auto", True),
        (TWO_NODES, "all_reduce", "library", False),
        (LONE_RANKS, "all_reduce", "auto", False),  # short lanes of many nodes have another order
        (LONE_RANKS, "reduce", "auto", False),  # by a tree whose shape follows from the length
        (LONE_RANKS, "broadcast", "auto", True),
        (ONE_RANK, "all_reduce", "auto", True),
    ],
)
def test_what_has_the_same_sums_in_parts(
    topology: Topology, kind: Kind, requested: AlgorithmOption, keeps: bool
) -> None:
    assert keeps_order_in_parts(topology, kind, requested) is keeps
