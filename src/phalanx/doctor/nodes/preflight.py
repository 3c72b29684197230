"""Examine the nodes of a run: over ssh before it, then by one rank on each, beside its start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.comm.pairs import PairSpeed
from phalanx.doctor.examine import Finding
from phalanx.doctor.nodes import facts
from phalanx.doctor.nodes.interview import NodeFacts, words_in
from phalanx.doctor.nodes.judge import describe_nodes, judge_nodes, judge_survey
from phalanx.doctor.nodes.meeting import SURVEY_S, Meeting
from phalanx.doctor.nodes.networks import judge_networks
from phalanx.doctor.nodes.reach import ask_nodes, is_this_machine
from phalanx.doctor.nodes.requirements import NodeRequirements
from phalanx.doctor.nodes.survey import Survey
from phalanx.errors import UserError
from phalanx.jobs.installation import MpiInstallation
from phalanx.jobs.networks import network_variables

_LOST_S = 6.0
"""Seconds for ranks to meet if nodes do not answer each other in any network."""


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """Findings on the nodes of a run."""

    findings: Sequence[Finding]
    """Problems and warnings."""
    mpi: str
    own: Mapping[str, Any]
    """Facts of this machine."""
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    """Facts by host; none of a node that could not be asked."""
    pairs: Sequence[PairSpeed] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Keep MPI to the networks that lead to all nodes."""
    are_apart: bool = False
    """No network leads from each node to the others."""

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status == "problem"]

    def show(self, show: Callable[[str], None]) -> None:
        """Show a line on all nodes, and one for each warning.

        Raises: UserError naming every problem, with its mend.
        """
        if self.problems:
            raise UserError("\n  ".join(["the nodes cannot run this:", *_texts(self.problems)]))
        show(describe_nodes(self.mpi, self.own, self.nodes, self.pairs))
        for line in _texts(self.findings):
            show(line)

    def meeting(self, mpi: MpiInstallation) -> Meeting:
        """Start a rank on each node that was asked; leave its `with` block to end them."""
        patience_s = _LOST_S if self.are_apart else SURVEY_S
        return Meeting(list(self.nodes), mpi, None, patience_s=patience_s, variables=self.variables)

    def having_met(self, met: Survey | Finding) -> Preflight:
        """Return these findings with those of the ranks that met."""
        if isinstance(met, Finding):
            return replace(self, findings=[*self.findings, met])
        judged = judge_survey(list(self.nodes), met, len(self.nodes))
        return replace(self, findings=[*self.findings, *judged], pairs=met.pairs)


def needs_preflight(required: NodeRequirements) -> bool:
    """Return whether ranks leave this machine."""
    return len(required.hosts) > 1 or any(not is_this_machine(host) for host in required.hosts)


def examine_nodes(required: NodeRequirements, mpi: MpiInstallation) -> Preflight:
    """Ask the nodes and start a rank on each. Nothing is left behind on any of them."""
    if not required.has_ssh:
        return examine_by_ranks(required, mpi)
    found = ask_over_ssh(required, mpi)
    if found.problems:
        return found
    with found.meeting(mpi) as meeting:
        return found.having_met(meeting.wait())


@contextlib.contextmanager
def examined_beside(
    required: NodeRequirements, mpi: MpiInstallation, show: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Ask the nodes over ssh, then start a rank on each, to measure the links while the block runs,
    which is a job of these nodes.

    show: is given each line on the nodes. MPI is kept from networks that do not lead to all nodes,
    by variables of this process.
    Yields: a function to call again and again, which raises UserError where the ranks do not meet.
    After the block, a job that has come to its end, that is shown as a line.
    Raises: UserError naming each node that cannot run the job, and the fix.
    """
    found = ask_over_ssh(required, mpi) if required.has_ssh else examine_by_ranks(required, mpi)
    if found.are_apart and not found.problems:  # the job would wait for ever
        with found.meeting(mpi) as meeting:
            found = found.having_met(meeting.wait())
    if found.problems or found.are_apart or not required.has_ssh:
        found.show(show)
        yield lambda: None
        return
    os.environ.update(found.variables)
    is_shown = False
    with found.meeting(mpi) as meeting:

        def check() -> None:
            nonlocal is_shown
            met = None if is_shown else meeting.poll()
            if met is not None:
                is_shown = True
                found.having_met(met).show(show)

        yield check
        meeting.wait()
        try:
            check()
        except UserError as error:
            show(str(error))


def ask_over_ssh(required: NodeRequirements, mpi: MpiInstallation) -> Preflight:
    """Ask the nodes; what follows from how their ranks meet is still to be found."""
    question = required.question()
    nodes, failed = ask_nodes(required.hosts, question)
    here = (node.facts for host, node in nodes.items() if is_this_machine(host))
    own = next(here, None) or facts.answer({**question, "names": []})
    findings = failed + judge_nodes(required, own, nodes)
    found = Preflight(findings=findings, mpi=str(mpi), own=own, nodes=nodes)
    if found.problems:
        return found
    networks = judge_networks(
        {host: node.facts["networks"] for host, node in nodes.items()},
        {host: node.unreachable for host, node in nodes.items()},
    )
    variables = {}
    if networks.has_others:  # MPI is kept from networks that lead nowhere
        variables = network_variables(mpi.vendor, networks.usable, os.environ)
    return replace(
        found,
        findings=findings + with_mend(networks.findings, variables),
        variables=variables,
        are_apart=bool(networks.findings) and not networks.usable,
    )


def with_mend(findings: Sequence[Finding], variables: Mapping[str, str]) -> list[Finding]:
    """Return the findings on networks. variables: that Phalanx sets to keep MPI from them."""
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    if not words:
        return [replace(it, mend="bring it up, or remove its address") for it in findings]
    return [replace(it, detail=f"{it.detail}; left out by {words}") for it in findings]


def examine_by_ranks(required: NodeRequirements, mpi: MpiInstallation) -> Preflight:
    """Examine nodes that only the MPI's launcher reaches."""
    own = facts.answer({**required.question(), "names": []})
    with words_in(required.folders) as words:
        question = {**required.question(), "words": words}
        with Meeting(required.hosts, mpi, question) as meeting:
            survey = meeting.wait()
    if isinstance(survey, Finding):
        return Preflight(findings=[survey], mpi=str(mpi), own=own)
    return judge_answers(required, own, survey, ranks=len(required.hosts), mpi=str(mpi))


def judge_answers(
    required: NodeRequirements, own: Mapping[str, Any], survey: Survey, *, ranks: int, mpi: str
) -> Preflight:
    """Return what the answers of ranks mean. ranks: how many were started."""
    nodes = nodes_of(survey)
    findings = judge_survey(list(nodes), survey, ranks)
    if not any(finding.status == "problem" for finding in findings):
        findings += judge_nodes(required, own, nodes)
    return Preflight(findings=findings, mpi=mpi, own=own, nodes=nodes, pairs=survey.pairs)


def nodes_of(survey: Survey) -> dict[str, NodeFacts]:
    """Return the answers of the nodes by their own names."""
    found: dict[str, NodeFacts] = {}
    for number, node in enumerate(survey.nodes):
        assert node.answers is not None, "ranks were asked"
        found[f"{node.host} ({number})" if node.host in found else node.host] = node.answers
    return found


def _texts(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each finding."""
    return [
        f"{found.name}: {found.detail}" + (f"; fix: {found.mend}" if found.mend else "")
        for found in findings
    ]
