"""Judge nodes by their answers: what breaks a run, what is worth knowing. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.comm.pairs import SLOW_SHARE
from phalanx.doctor.examine import Finding, problem, warning
from phalanx.doctor.nodes.plan import MPI_WHEELS, SAME, NodePlan, how_to_install
from phalanx.doctor.nodes.reach import NodeFacts
from phalanx.doctor.nodes.survey import PairSpeed, Survey

CLOCK_OFFSET_S = 0.1
LOW_DISK_BYTES = 1 << 30


def judge_nodes(
    plan: NodePlan, own: Mapping[str, Any], nodes: Mapping[str, NodeFacts]
) -> list[Finding]:
    """Return problems and warnings. own: facts of this machine, which starts the ranks."""
    found = [
        finding for host, node in nodes.items() for finding in _judge_node(plan, host, own, node)
    ]
    return [*found, *_judge_together(nodes)] if nodes else []


def _judge_node(
    plan: NodePlan, host: str, own: Mapping[str, Any], node: NodeFacts
) -> Iterator[Finding]:
    theirs = node.facts
    if theirs["architecture"] != own["architecture"]:
        detail = f"is of {theirs['architecture']}, this machine of {own['architecture']}"
        yield problem(host, detail, "take nodes of one architecture")
    if theirs["python"] != own["python"]:
        is_minor = _release(theirs["python"]) == _release(own["python"])
        detail = f"{plan.python} is Python {theirs['python']} there, {own['python']} here"
        yield (warning if is_minor else problem)(host, detail, SAME)
    yield from _judge_packages(plan, host, own, theirs)
    absent = theirs["missing"]
    for path in absent:
        if any(str(folder) in absent for folder in Path(path).parents):
            continue
        yield problem(host, f"has no {path}", plan.paths[path].format(host=host))
    yield from _judge_state(host, node)
    if theirs["unresolved"]:
        detail = f"finds no address of {', '.join(theirs['unresolved'][:8])}"
        yield warning(host, detail, "write their names into its /etc/hosts, or into the DNS")


def _judge_packages(
    plan: NodePlan, host: str, own: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[Finding]:
    if theirs["phalanx"] is None:
        mend = how_to_install(host, own["packages"], python=plan.python)
        yield problem(host, f"has no Phalanx for {plan.python}", mend)
    elif theirs["phalanx"] != own["phalanx"]:
        release, there = (facts["packages"].get("phalanx") for facts in (own, theirs))
        detail = "has another Phalanx: its files differ from those here"
        mend = f"scp -r {plan.package} {host}:{Path(plan.package).parent}"
        if release and there and release != there:
            detail = f"has Phalanx {there}, here {release}"
            mend = how_to_install(host, own["packages"], python=plan.python)
        yield problem(host, detail, mend)
    elif own["has_kernels"] and not theirs["has_kernels"]:
        detail = "has no compiled kernels of Phalanx: no rank uses shared memory, on any node"
        mend = f"ssh {host} {plan.python} -m pip install --force-reinstall --no-deps phalanx"
        yield warning(host, detail, f"{mend}, where there is a C compiler")
    replaced = yield from _judge_other_mpi(plan, host, own["packages"], theirs["packages"])
    for name, ours in own["packages"].items():
        there = theirs["packages"][name]
        if ours is None or there == ours or name in ("phalanx", replaced):
            continue
        wanted = f"{name}=={ours.partition('+')[0]}"
        mend = f"ssh {host} {plan.python} -m pip install {wanted}"
        if there is None:
            yield problem(host, f"has no {name} {ours} for {plan.python}", mend)
            continue
        is_minor = name not in MPI_WHEELS and _release(ours) == _release(there)
        yield (warning if is_minor else problem)(host, f"has {name} {there}, here {ours}", mend)


def _judge_other_mpi(
    plan: NodePlan,
    host: str,
    own: Mapping[str, str | None],
    theirs: Mapping[str, str | None],
) -> Generator[Finding, None, str | None]:
    """Yield a problem for an MPI from PyPI that this machine lacks: two of them overwrite each
    other's files, so that ours beside it starts no ranks. Return the name of ours, then."""
    ours = next((name for name in MPI_WHEELS if own.get(name)), None)
    others = [name for name in MPI_WHEELS if theirs.get(name) and name != ours]
    if ours is None or not others:
        return None
    there = [*others, *([ours] if theirs.get(ours) else [])]
    has = " and ".join(f"{name} {theirs[name]}" for name in there)
    mend = (
        f'ssh {host} "{plan.python} -m pip uninstall -y {" ".join(there)} && '
        f'{plan.python} -m pip install {ours}=={own[ours]}"'
    )
    yield problem(host, f"has {has}, here {ours} {own[ours]} alone", mend)
    return ours


def _release(version: str) -> list[str]:
    """`2.13.0+cpu` → ["2", "13"]."""
    return re.findall(r"\d+", version)[:2]


def _judge_state(host: str, node: NodeFacts) -> Iterator[Finding]:
    offset_s = node.clock_offset_s
    if abs(offset_s) - node.clock_error_s > CLOCK_OFFSET_S:
        way = "ahead of" if offset_s > 0 else "behind"
        detail = f"its clock is {abs(offset_s):.1f} s {way} this machine's"
        yield warning(host, detail, f"ssh {host} timedatectl set-ntp true")
    for folder, free_bytes in node.facts["free_bytes"].items():
        if free_bytes is not None and free_bytes < LOW_DISK_BYTES:
            detail = f"has {free_bytes / 2**20:,.0f} MiB free for {folder}"
            yield warning(host, detail, "make room, or name another folder")


def _judge_together(nodes: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    """Compare the nodes with each other."""
    cores = {host: node.facts["cores"] for host, node in nodes.items()}
    for host, number in cores.items():
        if number < max(cores.values()):
            yield warning(host, f"has {_count(number, 'core')}, others {max(cores.values())}")
    memory = {host: node.facts["memory_bytes"] for host, node in nodes.items()}
    for host, size in memory.items():
        if size < max(memory.values()) / 2:
            yield warning(host, f"has {gib(size)} of memory, others {gib(max(memory.values()))}")
    processors = {host: node.facts["processor"] for host, node in nodes.items()}
    usual = statistics.mode(processors.values())
    for host, processor in processors.items():
        if processor != usual:
            yield warning(host, f"is an {processor}, others {usual}")
    machines = {host: node.facts["memory_id"] for host, node in nodes.items()}
    for first, host in _equal(machines):
        yield problem(host, f"is the same machine as {first}", "name it once, with all ranks")
    names = {host: node.facts["host"] for host, node in nodes.items()}
    for first, host in _equal(names):
        if machines[first] != machines[host]:
            mend = f"ssh {host} hostnamectl set-hostname {host}"
            yield warning(host, f"calls itself {names[first]}, as {first} does", mend)


def _equal(values: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return pairs of hosts with the same value: the first of it, and each other."""
    first: dict[object, str] = {}
    return [
        (first[value], host)
        for host, value in values.items()
        if first.setdefault(value, host) != host
    ]


def judge_survey(hosts: Sequence[str], survey: Survey, ranks: int) -> list[Finding]:
    """Judge what the ranks found. hosts: names of the nodes; ranks: how many were started."""
    if survey.world_size != ranks:
        detail = f"{ranks} ranks were started, {survey.library} sees {survey.world_size}"
        return [problem("MPI", detail, "launcher and library are of different MPIs")]
    if len(survey.nodes) != len(hosts):
        there = ", ".join(f"{node.num_ranks} on {node.host}" for node in survey.nodes)
        detail = f"started one rank on each of {', '.join(hosts[:8])}, but they are {there}"
        return [problem("MPI", detail, "name other hosts, or start the ranks by mpiexec")]
    found = []
    for host, node in zip(hosts, survey.nodes, strict=True):
        if set(node.shared_sizes) != {node.num_ranks}:
            sizes = ", ".join(map(str, sorted(set(node.shared_sizes))))
            detail = f"{_count(node.num_ranks, 'rank')} there, but MPI shares memory among {sizes}"
            found.append(problem(host, detail, "give each node a host name of its own"))
    usual = statistics.median([pair.bandwidth_bytes_per_s for pair in survey.pairs] or [0.0])
    for pair in survey.pairs:
        if pair.bandwidth_bytes_per_s < SLOW_SHARE * usual:
            detail = f"{bandwidth(pair.bandwidth_bytes_per_s)}, others {bandwidth(usual)}"
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
