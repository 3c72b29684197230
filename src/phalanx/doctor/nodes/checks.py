"""The nodes in the output of `phalanx doctor`."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.comm.mpi import mpi
from phalanx.comm.pairs import PairSpeed
from phalanx.doctor.examine import Finding, ok, problem
from phalanx.doctor.nodes import facts
from phalanx.doctor.nodes.interview import words_in
from phalanx.doctor.nodes.judge import (
    bandwidth,
    describe_folders,
    describe_links,
    describe_node,
)
from phalanx.doctor.nodes.preflight import Preflight, examine_nodes, judge_answers
from phalanx.doctor.nodes.requirements import NodeRequirements, node_requirements
from phalanx.doctor.nodes.survey import Survey, survey
from phalanx.jobs.allocation import allocation
from phalanx.jobs.detect import Launched, how_to_start
from phalanx.jobs.installation import find_mpi

JOIN_S = 60.0
"""Seconds for all ranks of a launcher to arrive."""
_MOST_PAIRS = 6


def check_nodes(runs: Path) -> list[Finding]:
    """Examine the nodes of --hosts or of the allocation. runs: folder of the runs."""
    found = find_mpi(os.environ)
    ranks = sum(allocation(os.environ).slots)
    required = node_requirements(ranks, found, os.environ, cwd=Path.cwd(), folders=[runs])
    return list_findings(examine_nodes(required, found))


def list_findings(found: Preflight) -> list[Finding]:
    """Return a line for each node, and those on links and folders."""
    broken = {finding.name for finding in found.problems}
    lines = [ok(host, describe_node(it)) for host, it in found.nodes.items() if host not in broken]
    lines += found.findings
    if found.pairs:
        lines.append(ok("links", _list_links(list(found.nodes), found.pairs)))
    if found.nodes:
        texts = [text for text, _ in describe_folders(found.own, found.nodes)]
        lines += [ok("folders", "; ".join(texts))] if texts and len(found.nodes) > 1 else []
    return lines


def _list_links(hosts: Sequence[str], pairs: Sequence[PairSpeed]) -> str:
    if len(pairs) > _MOST_PAIRS:
        slowest = min(pairs, key=lambda pair: pair.bandwidth_bytes_per_s)
        speed = bandwidth(slowest.bandwidth_bytes_per_s)
        where = f"{hosts[slowest.first]}–{hosts[slowest.second]}"
        return f"{describe_links(pairs)}, slowest {where} {speed}"
    return "; ".join(
        f"{hosts[pair.first]}–{hosts[pair.second]} {describe_links([pair])}" for pair in pairs
    )


def check_ranks_together(
    launched: Launched, runs: Path, give_up: Callable[[list[Finding]], None]
) -> list[Finding] | None:
    """Examine the nodes of all ranks that a launcher started; collective over them.

    runs: folder of the runs. give_up: takes the findings if the ranks do not meet within `JOIN_S`,
    and ends the process. Returns None but on rank 0.
    """
    host = socket.gethostname()
    detail = f"{launched.world_size} ranks do not meet within {JOIN_S:g} s: rank 0 is on {host}"
    late = threading.Timer(JOIN_S, lambda: give_up([problem("ranks", detail)]))
    late.daemon = True
    if launched.rank == 0:
        late.start()
    try:
        try:
            library = mpi()
        except (ImportError, RuntimeError) as error:
            return [problem("MPI", str(error))] if launched.rank == 0 else None
        world = library.COMM_WORLD
        if world.Get_size() != launched.world_size:
            name = library.Get_library_version().split(",")[0]
            detail = (
                f"{launched.launcher} started {launched.world_size}, the MPI library ({name}) "
                f"sees {world.Get_size()}"
            )
            mend = how_to_start(launched, name)
            return [problem("ranks", detail, mend)] if launched.rank == 0 else None
        folders = {str(runs): str(runs.absolute())}
        required = NodeRequirements(hosts=(), has_ssh=False, folders=folders, paths={})
        with words_in(required.folders if launched.rank == 0 else {}) as words:
            question = {**required.question(), "words": words}
            found = survey(library, world.bcast(question))
    finally:
        late.cancel()
    return None if found is None else _judge_together(found, required)


def _judge_together(found: Survey, required: NodeRequirements) -> list[Finding]:
    own = facts.answer(required.question())
    seen = judge_answers(required, own, found, ranks=found.world_size, mpi=found.library)
    placed = ", ".join(f"{node.num_ranks} on {node.host}" for node in found.nodes)
    together = f"{found.world_size} found each other over {found.library}: {placed}"
    return [ok("ranks", together), *list_findings(seen)]
