"""Examine the nodes of a run before it: over ssh, then by one rank on each."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from phalanx.doctor.examine import Finding, problem
from phalanx.doctor.mpi import parse_answers, reason
from phalanx.doctor.nodes import facts
from phalanx.doctor.nodes.judge import describe_nodes, judge_nodes, judge_survey
from phalanx.doctor.nodes.networks import JudgedNetworks, judge_networks
from phalanx.doctor.nodes.plan import NodePlan
from phalanx.doctor.nodes.reach import (
    NodeFacts,
    ask_nodes,
    is_this_machine,
    seen_folders,
    words_in,
)
from phalanx.doctor.nodes.survey import FAILED, PairSpeed, Survey
from phalanx.errors import UserError
from phalanx.launch.allocation import HOSTS
from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import MpiInstallation
from phalanx.launch.job import Job
from phalanx.launch.networks import network_variables

SURVEY_S = 30.0
_SURVEY_LOST_S = 6.0
"""Where nodes do not answer each other in any network."""
SURVEY_PROGRAM = (sys.executable, "-m", "phalanx.doctor.nodes.survey")
_FIREWALL = (
    "let the nodes reach each other on all TCP ports; where a node has several networks, name one: "
    "OMPI_MCA_btl_tcp_if_include, PRTE_MCA_prte_if_include, or -iface for Hydra"
)


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """Findings on the nodes of a run."""

    findings: list[Finding]
    """Problems and warnings."""
    mpi: str
    own: Mapping[str, Any]
    """Facts of this machine."""
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    """By host; none where a node could not be asked."""
    pairs: Sequence[PairSpeed] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Keep MPI to the networks that lead to all nodes."""

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status == "problem"]

    def lines(self) -> list[str]:
        """Return a line on all nodes, and one for each warning.

        Raises: UserError naming every problem, with its mend.
        """
        if self.problems:
            raise UserError("\n  ".join(["the nodes cannot run this:", *_texts(self.problems)]))
        return [describe_nodes(self.mpi, self.own, self.nodes, self.pairs), *_texts(self.findings)]


def needs_preflight(plan: NodePlan) -> bool:
    """Return whether ranks leave this machine."""
    return len(plan.hosts) > 1 or any(not is_this_machine(host) for host in plan.hosts)


def examine_nodes(plan: NodePlan, mpi: MpiInstallation) -> Preflight:
    """Ask the nodes and start a rank on each. Nothing is left behind on any of them."""
    question = plan.question()
    own = facts.answer({**question, "names": []})
    if not plan.has_ssh:
        return _examine_by_ranks(plan, mpi, own)
    nodes, failed = ask_nodes(plan.hosts, question)
    findings = failed + judge_nodes(plan, own, nodes)
    found = Preflight(findings=findings, mpi=str(mpi), own=own, nodes=nodes)
    if found.problems:
        return found
    networks = judge_networks(
        {host: node.facts["networks"] for host, node in nodes.items()},
        {host: node.unreachable for host, node in nodes.items()},
    )
    variables = _choose_networks(mpi, networks)
    findings += with_mend(networks.findings, variables)
    is_lost = bool(networks.findings) and not networks.usable
    patience_s = _SURVEY_LOST_S if is_lost else SURVEY_S
    survey = run_survey(plan.hosts, mpi, None, patience_s=patience_s, variables=variables)
    found = replace(found, findings=findings, variables=variables)
    if isinstance(survey, Finding):
        return replace(found, findings=[*findings, survey])
    findings += judge_survey(plan.hosts, survey, len(plan.hosts))
    return replace(found, pairs=survey.pairs)


def _choose_networks(mpi: MpiInstallation, networks: JudgedNetworks) -> dict[str, str]:
    """Return the variables that keep MPI from networks that lead nowhere; none where all lead."""
    if not networks.has_others:
        return {}
    cidrs = [network.cidr for network in networks.usable]
    interfaces = [network.interface for network in networks.usable]
    return network_variables(mpi.vendor, cidrs, interfaces, os.environ)


def with_mend(findings: Sequence[Finding], variables: Mapping[str, str]) -> list[Finding]:
    """Return the findings on networks. variables: that Phalanx sets to keep MPI from them."""
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    if not words:
        return [replace(it, mend="bring it up, or take its address away") for it in findings]
    return [replace(it, detail=f"{it.detail}; left out by {words}") for it in findings]


def _examine_by_ranks(plan: NodePlan, mpi: MpiInstallation, own: Mapping[str, Any]) -> Preflight:
    """Examine nodes that only the MPI's launcher reaches."""
    with words_in(plan.folders) as words:
        question = {**plan.question(), "words": dict(words.values())}
        survey = run_survey(plan.hosts, mpi, question)
    if isinstance(survey, Finding):
        return Preflight(findings=[survey], mpi=str(mpi), own=own)
    nodes = nodes_of(survey, words)
    findings = judge_survey(list(nodes), survey, len(plan.hosts))
    if not any(finding.status == "problem" for finding in findings):
        findings += judge_nodes(plan, own, nodes)
    return Preflight(findings=findings, mpi=str(mpi), own=own, nodes=nodes, pairs=survey.pairs)


def nodes_of(survey: Survey, words: Mapping[str, tuple[str, str]]) -> dict[str, NodeFacts]:
    """Return the answers of the nodes by their own names. words: as `words_in` gives them."""
    found: dict[str, NodeFacts] = {}
    for number, node in enumerate(survey.nodes):
        name = f"{node.host} ({number})" if node.host in found else node.host
        found[name] = NodeFacts(
            facts=node.facts or {},
            clock_offset_s=node.clock_offset_s,
            clock_error_s=node.clock_error_s,
            sees=seen_folders(words, node.read or {}),
        )
    return found


def run_survey(
    hosts: Sequence[str],
    mpi: MpiInstallation,
    question: Mapping[str, object] | None,
    *,
    patience_s: float = SURVEY_S,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Survey | Finding:
    """Start a rank on each host, and return what they found, or why they did not.

    variables: for the launcher and the ranks.
    """
    environ = {**os.environ, HOSTS: ",".join(f"{host}:1" for host in hosts)}
    program = [*SURVEY_PROGRAM, json.dumps(question)]
    command = mpi_job(mpi, len(hosts), program, cores=usable_cores(), environ=environ)
    command = replace(command, environment={**command.environment, **variables})
    with tempfile.TemporaryDirectory(prefix="phalanx-doctor-") as folder:
        log = Path(folder) / "ranks.log"
        with Job.start([command], log) as job:
            code = job.wait(patience_s)
        output = log.read_text(errors="replace")
    answers = parse_answers(output)
    said = describe_output(output)
    if code is None:
        detail = f"ranks on {', '.join(hosts[:8])} do not reach each other within {patience_s:g} s"
        return problem("MPI", f"{detail}: {said}", _FIREWALL)
    if code or not answers:
        return problem("MPI", f"{mpi} does not connect the nodes: {said}", _FIREWALL)
    return Survey.parse(answers[0])


def describe_output(output: str) -> str:
    """Return the launcher's first sentence, between lines of dashes, what a rank said, or the first
    line of an error."""
    parts = re.split(r"^-{20,}\n", output, flags=re.MULTILINE)
    if len(parts) > 2:
        return " ".join(parts[1].split()).partition(". ")[0]
    lines = [line for line in output.splitlines() if "setpgid(" not in line]  # harmless
    said = next((line for line in lines if line.startswith(FAILED)), None)
    return said.removeprefix(FAILED) if said else reason("\n".join(lines))


def _texts(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each finding."""
    return [
        f"{found.name}: {found.detail}" + (f"; mend: {found.mend}" if found.mend else "")
        for found in findings
    ]
