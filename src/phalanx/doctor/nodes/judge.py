"""Rules for the answers of nodes: what breaks a run, what is worth knowing. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phalanx.comm.pairs import SLOW_SHARE, PairSpeed
from phalanx.doctor.examine import Finding, problem, warning
from phalanx.doctor.nodes.interview import NodeFacts
from phalanx.doctor.nodes.requirements import MPI_WHEELS, SAME, NodeRequirements, how_to_install
from phalanx.doctor.nodes.survey import Survey

CLOCK_OFFSET_S = 0.1
LOW_DISK_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node beside this machine and the other nodes: what rules ask, and their sentences name."""

    host: str
    node: NodeFacts
    required: NodeRequirements
    own: Mapping[str, Any]
    """Facts of this machine, which starts the ranks."""
    nodes: Mapping[str, NodeFacts]

    @property
    def theirs(self) -> Mapping[str, Any]:
        """Facts of the node."""
        return self.node.facts

    def differs(self, name: str) -> bool:
        """Return whether a fact of the node is not that of this machine."""
        return bool(self.theirs[name] != self.own[name])

    def all(self, name: str) -> list[Any]:
        """Return a fact of every node."""
        return [node.facts[name] for node in self.nodes.values()]

    def first_with(self, name: str) -> str:
        """Return the first host that has the same fact."""
        return next(h for h, node in self.nodes.items() if node.facts[name] == self.theirs[name])

    @property
    def has_minor_python(self) -> bool:
        """Return whether both are Python 3.11, say."""
        return _release(self.theirs["python"]) == _release(self.own["python"])

    @property
    def phalanx(self) -> Literal["none", "same", "other release", "other files"]:
        """Phalanx of the node, beside that of this machine."""
        if self.theirs["phalanx"] is None:
            return "none"
        here, there = (facts["packages"].get("phalanx") for facts in (self.own, self.theirs))
        is_other = here and there and here != there
        changed: Literal["other release", "other files"] = (
            "other release" if is_other else "other files"
        )
        return changed if self.differs("phalanx") else "same"

    def words(self) -> dict[str, object]:
        """Return what sentences name."""
        offset_s, package = self.node.clock_offset_s, Path(self.required.package)
        return {
            **vars(self),
            "theirs": self.theirs,
            "python": self.required.python,
            "install": how_to_install(self.host, self.own["packages"], python=self.required.python),
            "copy": f"scp -r {package} {self.host}:{package.parent}",
            "offset": f"{abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'}",
            "unresolved": ", ".join(self.theirs["unresolved"][:8]),
            "cores": _count(self.theirs["cores"], "core"),
            "most_cores": max(self.all("cores")),
            "memory": gib(self.theirs["memory_bytes"]),
            "most_memory": gib(max(self.all("memory_bytes"))),
            "usual": statistics.mode(self.all("processor")),
            "same_machine": self.first_with("memory_id"),
            "same_name": self.first_with("host"),
        }


class NodeRule(NamedTuple):
    """A fault of which a node has one at most: its sentence and its mend, by `NodeView.words`."""

    judge: Callable[[str, str, str | None], Finding]
    applies: Callable[[NodeView], bool]
    detail: str
    mend: str | None = None


_PYTHON = "{python} is Python {theirs[python]} there, {own[python]} here"
RULES = (
    NodeRule(problem, lambda it: it.differs("architecture"),
         "has architecture {theirs[architecture]}, this machine {own[architecture]}",
         "use nodes of one architecture"),
    NodeRule(problem, lambda it: not it.has_minor_python, _PYTHON, SAME),
    NodeRule(warning, lambda it: it.differs("python") and it.has_minor_python, _PYTHON, SAME),
    NodeRule(problem, lambda it: it.phalanx == "none", "has no Phalanx for {python}", "{install}"),
    NodeRule(problem, lambda it: it.phalanx == "other release",
         "has Phalanx {theirs[packages][phalanx]}, here {own[packages][phalanx]}", "{install}"),
    NodeRule(problem, lambda it: it.phalanx == "other files",
         "has a different Phalanx: its files differ from those here", "{copy}"),
    NodeRule(warning,
         lambda it: it.phalanx == "same" and it.own["has_kernels"] and not it.theirs["has_kernels"],
         "has no compiled kernels of Phalanx: no rank uses shared memory, on any node",
         "ssh {host} {python} -m pip install --force-reinstall --no-deps phalanx, with a C "
         "compiler installed"),
    NodeRule(warning,
         lambda it: abs(it.node.clock_offset_s) - it.node.clock_error_s > CLOCK_OFFSET_S,
         "its clock is {offset} this machine's", "ssh {host} timedatectl set-ntp true"),
    NodeRule(warning, lambda it: bool(it.theirs["unresolved"]), "finds no address of {unresolved}",
         "add their names to its /etc/hosts or to DNS"),
    NodeRule(warning, lambda it: it.theirs["cores"] < max(it.all("cores")),
         "has {cores}, other nodes {most_cores}"),
    NodeRule(warning, lambda it: it.theirs["memory_bytes"] < max(it.all("memory_bytes")) / 2,
         "has {memory} of memory, other nodes {most_memory}"),
    NodeRule(warning, lambda it: it.theirs["processor"] != statistics.mode(it.all("processor")),
         "is an {theirs[processor]}, other nodes {usual}"),
    NodeRule(problem, lambda it: it.first_with("memory_id") != it.host,
         "is the same machine as {same_machine}", "list it once, with all ranks"),
    NodeRule(warning,
         lambda it: it.first_with("host") != it.host and it.first_with("memory_id") == it.host,
         "calls itself {theirs[host]}, as {same_name} does",
         "ssh {host} hostnamectl set-hostname {host}"),
)  # fmt: skip


def judge_nodes(
    required: NodeRequirements, own: Mapping[str, Any], nodes: Mapping[str, NodeFacts]
) -> list[Finding]:
    """Return problems and warnings. own: facts of this machine, which starts the ranks."""
    found: list[Finding] = []
    for host, node in nodes.items():
        seen = NodeView(required=required, host=host, node=node, own=own, nodes=nodes)
        words = seen.words()
        for rule in RULES:
            if rule.applies(seen):
                mend = None if rule.mend is None else rule.mend.format(**words)
                found.append(rule.judge(host, rule.detail.format(**words), mend))
        found += [*_judge_packages(seen), *_judge_paths(seen)]
    return found


def _judge_paths(it: NodeView) -> Iterator[Finding]:
    """Yield what must exist and does not, and folders with little room."""
    absent = it.theirs["missing"]
    for path in absent:
        if not any(str(folder) in absent for folder in Path(path).parents):
            yield problem(it.host, f"has no {path}", it.required.paths[path].format(host=it.host))
    for folder, free_bytes in it.theirs["free_bytes"].items():
        if free_bytes is not None and free_bytes < LOW_DISK_BYTES:
            detail = f"has {free_bytes / 2**20:,.0f} MiB free for {folder}"
            yield warning(it.host, detail, "free some space, or use another folder")


def _judge_packages(it: NodeView) -> Iterator[Finding]:
    """Yield other releases of the packages that ranks use.

    Of two MPIs from PyPI each overwrites the other's files, so that none starts ranks: where this
    machine has one alone, both are removed there before ours is installed.
    """
    own, theirs = it.own["packages"], it.theirs["packages"]
    ours = next((name for name in MPI_WHEELS if own.get(name)), None)
    others = [name for name in MPI_WHEELS if theirs.get(name) and name != ours]
    replaced = ours if others else None
    if replaced is not None:
        there = [*others, *([ours] if theirs.get(ours) else [])]
        has = " and ".join(f"{name} {theirs[name]}" for name in there)
        pip = f"{it.required.python} -m pip"
        mend = (
            f'ssh {it.host} "{pip} uninstall -y {" ".join(map(str, there))} && '
            f'{pip} install {ours}=={own[ours]}"'
        )
        yield problem(it.host, f"has {has}, here only {ours} {own[ours]}", mend)
    for name, release in own.items():
        found = theirs[name]
        if release is None or found == release or name in ("phalanx", replaced):
            continue
        mend = (
            f"ssh {it.host} {it.required.python} -m pip install {name}=={release.partition('+')[0]}"
        )
        if found is None:
            yield problem(it.host, f"has no {name} {release} for {it.required.python}", mend)
            continue
        is_minor = name not in MPI_WHEELS and _release(release) == _release(found)
        judge = warning if is_minor else problem
        yield judge(it.host, f"has {name} {found}, here {release}", mend)


def _release(version: str) -> list[str]:
    """`2.13.0+cpu` → ["2", "13"]."""
    return re.findall(r"\d+", version)[:2]


def judge_survey(hosts: Sequence[str], survey: Survey, ranks: int) -> list[Finding]:
    """Judge what the ranks found. hosts: names of the nodes; ranks: how many were started."""
    if survey.world_size != ranks:
        detail = f"{ranks} ranks were started, {survey.library} sees {survey.world_size}"
        return [problem("MPI", detail, "launcher and library belong to different MPIs")]
    if len(survey.nodes) != len(hosts):
        there = ", ".join(f"{node.num_ranks} on {node.host}" for node in survey.nodes)
        detail = f"started one rank on each of {', '.join(hosts[:8])}, but they are {there}"
        return [problem("MPI", detail, "use other hosts, or start the ranks by mpiexec")]
    found = []
    for host, node in zip(hosts, survey.nodes, strict=True):
        if set(node.shared_sizes) != {node.num_ranks}:
            sizes = ", ".join(map(str, sorted(set(node.shared_sizes))))
            detail = f"{_count(node.num_ranks, 'rank')} there, but MPI shares memory among {sizes}"
            found.append(problem(host, detail, "give each node a unique host name"))
    usual = statistics.median([pair.bandwidth_bytes_per_s for pair in survey.pairs] or [0.0])
    for pair in survey.pairs:
        if pair.bandwidth_bytes_per_s < SLOW_SHARE * usual:
            detail = f"{bandwidth(pair.bandwidth_bytes_per_s)}, other pairs {bandwidth(usual)}"
            found.append(warning(f"{hosts[pair.first]}–{hosts[pair.second]}", detail))
    return found


def describe_nodes(
    mpi: str, own: Mapping[str, Any], nodes: Mapping[str, NodeFacts], pairs: Sequence[PairSpeed]
) -> str:
    """Return the line that is printed when all is well. mpi: name and version."""
    torch = own["packages"]["torch"]
    is_same = all(node.facts["python"] == own["python"] for node in nodes.values())
    parts = [f"Python {own['python'] if is_same else '.'.join(_release(own['python']))}"]
    parts += [f"torch {'.'.join(_release(torch))}"] if torch else []
    words = [f"{_count(len(nodes), 'node')}: same {', '.join([*parts, mpi])}"]
    words += [describe_links(pairs)] if pairs else []
    words += [line for line, is_common in describe_folders(own, nodes) if not is_common]
    return "; ".join(words)


def describe_links(pairs: Sequence[PairSpeed]) -> str:
    """Return the medians: "940 Mbit/s, 0.12 ms"."""
    latency_s = statistics.median(pair.latency_s for pair in pairs)
    usual = statistics.median(pair.bandwidth_bytes_per_s for pair in pairs)
    return f"{bandwidth(usual)}, {latency_s * 1e3:.2g} ms"


def describe_folders(
    own: Mapping[str, Any], nodes: Mapping[str, NodeFacts]
) -> list[tuple[str, bool]]:
    """Return a line on each folder, and whether it, or its data, is the same on all nodes."""
    lines = []
    for folder in next(iter(nodes.values())).sees:
        without = [host for host, node in nodes.items() if not node.sees[folder]]
        whose = f" with {', '.join(without[:8])}" if len(without) < len(nodes) - 1 else ""
        lines.append((f"{folder} is {f'not shared{whose}' if without else 'shared'}", not without))
    for path, contents in own["contents"].items():
        without = [host for host, node in nodes.items() if node.facts["contents"][path] != contents]
        where = f"not the same on {', '.join(without[:8])}" if without else "the same on all"
        lines.append((f"{path} is {where}", not without))
    return lines


def describe_node(node: NodeFacts) -> str:
    """Return one line on a node."""
    facts = node.facts
    clock = f"clock {node.clock_offset_s * 1e3:+.1f} ± {node.clock_error_s * 1e3:.1f} ms"
    packages = [f"{name} {there}" for name, there in facts["packages"].items() if there]
    parts = [f"Python {facts['python']}", *packages, _count(facts["cores"], "core")]
    addresses = ", ".join(f"{name} {address}" for name, address in facts["addresses"].items())
    return ", ".join([*parts, gib(facts["memory_bytes"]), clock, addresses or "no network"])


def bandwidth(bytes_per_s: float) -> str:
    """`117.5e6` → "940 Mbit/s"."""
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit / 1e3:.3g} Gbit/s" if mbit >= 999.5 else f"{mbit:.3g} Mbit/s"


def gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
