"""Ranks that describe their nodes and the links between these.

Run as a program, `python -m phalanx.doctor.nodes.survey QUESTION`, it prints one JSON object on
rank 0. QUESTION: JSON as `facts.answer` takes it, or null where ssh has answered.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.comm.mpi import mpi
from phalanx.comm.pairs import measure_pairs
from phalanx.doctor.nodes import facts
from phalanx.launch.orphan import end_with_parent

FAILED = "phalanx-survey "
"""Begins the line of a rank that fails."""
_READINGS = 4  # of each clock


@dataclass(frozen=True, kw_only=True)
class PairSpeed:
    """The link between two nodes, by their numbers."""

    first: int
    second: int
    latency_s: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class SurveyedNode:
    """A node as its ranks see it."""

    host: str
    """Its own name of itself."""
    num_ranks: int
    shared_sizes: list[int]
    """By rank: how many ranks MPI believes to share its memory."""
    facts: Mapping[str, Any] | None
    clock_offset_s: float = 0.0
    clock_error_s: float = 0.0
    read: Mapping[str, bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Nodes and links as their ranks have found them."""

    world_size: int
    library: str
    nodes: Sequence[SurveyedNode]
    pairs: Sequence[PairSpeed]

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> Survey:
        """Return the survey that was printed."""
        return cls(
            world_size=answer["world_size"],
            library=answer["library"],
            nodes=[SurveyedNode(**node) for node in answer["nodes"]],
            pairs=[
                PairSpeed(first=a, second=b, latency_s=latency, bandwidth_bytes_per_s=bandwidth)
                for a, b, latency, bandwidth in answer["pairs"]
            ],
        )


def survey(library: Any, question: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Describe the nodes of all ranks; collective. Returns None but on rank 0.

    library: the module mpi4py.MPI.
    """
    world = library.COMM_WORLD
    rank = world.Get_rank()
    shared = world.Split_type(library.COMM_TYPE_SHARED)
    ranks = world.allgather((facts.memory_id(), socket.gethostname(), shared.Get_size()))
    shared.Free()
    nodes = _nodes_of([memory for memory, _, _ in ranks])
    leads = any(rank == members[0] for members in nodes)
    leaders = world.Split(0 if leads else library.UNDEFINED, rank)
    described: list[dict[str, Any]] = []
    pairs: list[tuple[int, int, float, float]] = []
    if leads:
        own = _own_facts(leaders, question)
        described = leaders.gather(own) or []
        pairs = measure_pairs(leaders)
        leaders.Free()
    if rank:
        return None
    return {
        "world_size": world.Get_size(),
        "library": " ".join(library.Get_library_version().splitlines()[0].split(",")[0].split()),
        "nodes": [
            {
                "host": ranks[members[0]][1],
                "num_ranks": len(members),
                "shared_sizes": [ranks[member][2] for member in members],
                **described[number],
            }
            for number, members in enumerate(nodes)
        ],
        "pairs": pairs,
    }


def _nodes_of(memories: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each node, in their order. memories: by rank, `facts.memory_id`."""
    return [
        [rank for rank, memory in enumerate(memories) if memory == node]
        for node in dict.fromkeys(memories)
    ]


def _own_facts(leaders: Any, question: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return this node's answers. Collective over one rank a node."""
    if question is None:
        return {"facts": None}
    found = facts.answer(dict(question))
    read = facts.answer({"read": question["words"]})
    offset_s, error_s = 0.0, 0.0
    for other in range(1, leaders.Get_size()):
        if leaders.Get_rank() == 0:
            for _ in range(_READINGS):
                leaders.recv(source=other)
                leaders.send(time.time(), other)
        elif leaders.Get_rank() == other:
            offset_s, error_s = _read_clock(leaders)
    return {
        "facts": found,
        "read": read,
        "clock_offset_s": offset_s,
        "clock_error_s": error_s,
    }


def _read_clock(leaders: Any) -> tuple[float, float]:
    """Return the offset of this clock to that of rank 0, and its largest error."""
    trips = []
    for _ in range(_READINGS):
        asked_s = time.time()
        leaders.send(None, 0)
        read_s = leaders.recv(source=0)
        heard_s = time.time()
        trips.append(((heard_s - asked_s) / 2, (asked_s + heard_s) / 2 - read_s))
    error_s, offset_s = min(trips)
    return offset_s, error_s


def main() -> None:
    """Survey the nodes on each rank."""
    end_with_parent()
    try:
        found = survey(mpi(), json.loads(sys.argv[1]))
    except (ImportError, RuntimeError) as error:  # of MPI, too
        text = f"{FAILED}{socket.gethostname()}: {' '.join(str(error).split())}"
        print(text, file=sys.stderr, flush=True)
        from phalanx.comm.abort import abort  # needed by those that fail alone

        abort(1)
    if found is not None:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
