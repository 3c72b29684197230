"""Ranks that describe their nodes and the links between these.

Run as a program, `python -m phalanx.doctor.nodes.survey QUESTION`, it prints one JSON object on
rank 0. QUESTION: JSON as `facts.answer` takes it, or null where ssh has answered.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from phalanx.comm.mpi import mpi
from phalanx.comm.pairs import PairSpeed, measure_pairs
from phalanx.doctor.nodes import facts
from phalanx.doctor.nodes.interview import NodeFacts, ask_more
from phalanx.jobs.orphan import end_with_parent

FAILED = "phalanx-survey "
"""Begins the line of a rank that fails."""


@dataclass(frozen=True, kw_only=True)
class SurveyedNode:
    """A node as its ranks see it."""

    host: str
    """Its own name of itself."""
    num_ranks: int
    shared_sizes: list[int]
    """Number of ranks that MPI believes to share its memory, by rank."""
    answers: NodeFacts | None
    """None where ssh has asked for them."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Nodes and links as their ranks have found them."""

    world_size: int
    library: str
    nodes: Sequence[SurveyedNode]
    pairs: Sequence[PairSpeed]


def survey(library: Any, question: Mapping[str, Any] | None) -> Survey | None:
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
    described: list[NodeFacts] = []
    pairs: list[PairSpeed] = []
    if leads:
        if question is not None:
            described = _interviewed(leaders, question)
        pairs = measure_pairs(leaders)
        leaders.Free()
    if rank:
        return None
    return Survey(
        world_size=world.Get_size(),
        library=" ".join(library.Get_library_version().splitlines()[0].split(",")[0].split()),
        nodes=[
            SurveyedNode(
                host=ranks[members[0]][1],
                num_ranks=len(members),
                shared_sizes=[ranks[member][2] for member in members],
                answers=described[number] if described else None,
            )
            for number, members in enumerate(nodes)
        ],
        pairs=pairs,
    )


def _nodes_of(memories: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each node, in their order. memories: by rank, `facts.memory_id`."""
    return [
        [rank for rank, memory in enumerate(memories) if memory == node]
        for node in dict.fromkeys(memories)
    ]


def _interviewed(leaders: Any, question: Mapping[str, Any]) -> list[NodeFacts]:
    """Return, on rank 0, the answers of every node. Collective over one rank of each.

    question: as `facts.answer` takes it, and the words that lie in folders.
    """
    found = leaders.gather(facts.answer(question))
    if found is None:
        while (asked := leaders.recv(source=0)) is not None:
            leaders.send(facts.answer(asked), 0)
        return []
    answers = [ask_more(facts.answer, found[0], question["words"])]
    for rank in range(1, len(found)):
        answers.append(ask_more(partial(_ask, leaders, rank), found[rank], question["words"]))
        leaders.send(None, rank)
    return answers


def _ask(leaders: Any, rank: int, question: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the node of another rank, which answers in `_interviewed`."""
    leaders.send(question, rank)
    answer: dict[str, Any] = leaders.recv(source=rank)
    return answer


def main() -> None:
    """Survey the nodes on each rank."""
    end_with_parent()
    try:
        found = survey(mpi(), json.loads(sys.argv[1]))
    except (ImportError, RuntimeError) as error:  # includes errors of MPI
        text = f"{FAILED}{socket.gethostname()}: {' '.join(str(error).split())}"
        print(text, file=sys.stderr, flush=True)
        from phalanx.comm.abort import abort  # needed by those that fail alone

        abort(1)
    if found is not None:
        print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main()
