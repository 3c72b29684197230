"""Choose the route of a collective by the facts of its group. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from phalanx.comm.collective import AlgorithmOption, Collective, Kind
from phalanx.comm.dtypes import DType

VARIABLE = "PHALANX_ALL_REDUCE"
SHARED = ("auto", "shared")  # requests that shared memory meets, where there is some

Algorithm = Literal[
    "shared", "short", "bruck", "direct", "naive", "ring", "tree", "halving", "lanes", "library"
]
Route = Literal["device", "single", Algorithm]
"""Execution of a collective: of device memory, of a single rank, or by an algorithm."""

# Up to so many bytes of all ranks together every rank gets every vector and reduces them all:
# one round instead of two. Provisional: Open MPI 5.0 within one node of 2 cores, busy, medians of
# 2 and 4 ranks in µs: 16 KiB each 24 against 32 and 139 against 312, 64 KiB 38 against 39 and 188
# against 333, 256 KiB 99 against 143 and 1609 against 562. To be measured again between machines.
SHORT_BYTES = 128 * 1024

# Up to so many ranks each sends to every other one at once. Of more, few bytes go by few peers, and
# long vectors to a root by a tree: a peer is a connection and a file, 1,024 of them a usual limit.
FEW_RANKS = 16
# Up to so many nodes a rank sends to all of its lane at once; more halve short vectors.
FEW_NODES = 8

# Number of ranks above which p-1 concurrent messages per rank cost more than the rounds of halving.
# Not measured: a guess from the cost formulas, with 0.5 µs to post a message.
MANY_RANKS = 64


@dataclass(frozen=True, kw_only=True)
class Topology:
    """nodes: the number of each rank's node; shares_memory: all ranks are joined through memory;
    is_emulated: messages leave by an emulated link; on_device: buffers lie in memory of a
    device."""

    nodes: tuple[int, ...]
    shares_memory: bool
    is_emulated: bool = False
    on_device: bool = False

    @cached_property
    def size(self) -> int:
        return len(self.nodes)

    @cached_property
    def num_nodes(self) -> int:
        return len(set(self.nodes))

    @cached_property
    def smallest_node(self) -> int:
        return min(self.nodes.count(node) for node in set(self.nodes))

    @cached_property
    def has_lanes(self) -> bool:
        """Return whether every rank has its like on every node, of several with several ranks."""
        is_even = self.smallest_node * self.num_nodes == self.size
        return is_even and self.num_nodes > 1 and self.smallest_node > 1


@dataclass(frozen=True)
class AlgorithmChoice:
    algorithm: Algorithm
    reason: str


def requested_algorithm(environ: Mapping[str, str]) -> AlgorithmOption:
    """Read the algorithm that the user requests; `auto` if none.

    Raises: ValueError naming the algorithms there are.
    """
    word = environ.get(VARIABLE) or "auto"
    for requested in get_args(AlgorithmOption):
        if word == requested:
            return requested  # type: ignore[no-any-return]
    raise ValueError(f"{VARIABLE} is {word!r}; use one of {', '.join(get_args(AlgorithmOption))}")


def choose_route(topology: Topology, collective: Collective, *, is_native: bool = False) -> Route:
    """Return the route of a collective in a group of this topology.

    is_native: MPI itself can reduce the elements.
    Raises: ValueError when the requested algorithm is not available.
    """
    if topology.on_device:
        return "device"
    if topology.size == 1:
        return "single"
    if collective.kind == "all_reduce":
        buffer, requested = collective.outputs[0], collective.algorithm
        return choose_all_reduce(
            buffer.num_bytes,
            buffer.dtype,
            topology=topology,
            requested=requested,
            is_native=is_native,
        ).algorithm
    if topology.shares_memory:
        return "shared"
    # Rejects `direct`, with which each local rank would send the same bytes to every rank of
    # another node, or the parts of the sums of a node.
    is_cut = collective.kind in ("reduce_scatter", "all_gather") and topology.has_lanes
    if is_cut and topology.num_nodes <= FEW_NODES:
        return "lanes"
    if topology.size > FEW_RANKS and _is_short(collective, topology.size):
        return "bruck"
    if topology.size > FEW_RANKS and collective.kind == "reduce":
        return "tree"
    return "lanes" if is_cut else "direct"


def _is_short(collective: Collective, size: int) -> bool:
    """Return whether a collective of many ranks is of few bytes; the same on every rank, also where
    ranks know some of the counts only: there it is so by the part (`collectives/cells.py`)."""
    match collective.kind:
        case "all_gather":
            return sum(output.num_bytes for output in collective.outputs) <= SHORT_BYTES
        case "reduce_scatter":
            return size * max(part.num_bytes for part in collective.inputs) <= SHORT_BYTES
        case "reduce":
            return size * collective.outputs[0].num_bytes <= SHORT_BYTES
        case _:
            return True


def choose_all_reduce(
    num_bytes: int, dtype: DType, *, topology: Topology, requested: AlgorithmOption, is_native: bool
) -> AlgorithmChoice:
    """The algorithm for vectors of so many bytes.

    is_native: MPI itself can reduce `dtype`.
    Raises: ValueError when the requested algorithm is not available.
    """
    if requested == "shared" and not topology.shares_memory:
        raise ValueError(f"{VARIABLE}=shared, but the ranks do not share memory")
    if requested == "library" and topology.is_emulated:
        return AlgorithmChoice(
            "direct", "the emulated link does not slow the MPI library's own messages"
        )
    if requested == "library" and not is_native:
        return AlgorithmChoice("direct", f"the MPI library has no reduction of {dtype.name}")
    if requested != "auto":
        return AlgorithmChoice(requested, f"{VARIABLE} asks for it")
    if topology.shares_memory:
        return AlgorithmChoice(
            "shared", "the ranks share memory: each reduces its share in place, in shared memory"
        )
    if num_bytes * topology.size <= SHORT_BYTES:
        few = f"no more than {SHORT_BYTES} bytes of all ranks"
        if topology.size <= FEW_RANKS:
            return AlgorithmChoice("short", f"{few}: one round")
        num_rounds = (topology.size - 1).bit_length()
        return AlgorithmChoice("bruck", f"{few}: {num_rounds} rounds, one message per round")
    if topology.num_nodes > 1 and topology.smallest_node > 1:
        return AlgorithmChoice("lanes", "every rank of a node sends a slice to the other nodes")
    if topology.size >= MANY_RANKS:
        return AlgorithmChoice("halving", f"{topology.size} ranks: few messages per rank")
    is_a_pair = topology.size == topology.num_nodes == 2
    rounds = "one round" if is_a_pair else "two rounds"
    return AlgorithmChoice("direct", f"{rounds}, in the order of the ranks")


def keeps_order_in_parts(topology: Topology, kind: Kind, requested: AlgorithmOption) -> bool:
    """Return whether an all-reduce, a reduce or a broadcast of a long vector makes the same sums
    where it is called in parts: the order of a sum depends on no length and no place there."""
    if kind == "all_reduce" and (requested not in SHARED or not topology.shares_memory):
        return requested == "auto" and topology.num_nodes <= FEW_NODES
    return kind != "reduce" or topology.shares_memory or topology.size <= FEW_RANKS


def explain(
    topology: Topology, requested: AlgorithmOption, dtype: DType, *, is_native: bool
) -> list[str]:
    """A line for each range of sizes: which algorithm an all-reduce takes there, and why."""
    lines: list[str] = []
    last: AlgorithmChoice | None = None
    for exponent in range(2, 31):
        choice = choose_all_reduce(
            2**exponent, dtype, topology=topology, requested=requested, is_native=is_native
        )
        if choice != last:
            lines.append(f"from {_size(2**exponent)}: {choice.algorithm} ({choice.reason})")
        last = choice
    return lines


def _size(num_bytes: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes} {unit}"
        num_bytes //= 1024
    return f"{num_bytes} GiB"
