"""Tables of every page: the environment, and the records that charts were drawn from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.records.schema import Environment
from phalanx.report.content import Table, by_place, make_table
from phalanx.report.figure import Figure
from phalanx.report.format import joined


def environments(known: Sequence[Environment]) -> Table:
    """Return a table of the environment; marks values that differ between runs."""
    facts: dict[str, list[str]] = {}
    for what, value in (fact for each in known for fact in facts_of(each).items()):
        if value not in facts.setdefault(what, []):
            facts[what].append(value)
    differ = [what for what, values in facts.items() if len(values) > 1]
    note = f"Not the same for all runs: {joined(differ)}." if differ else ""
    rows = [(what, "; ".join(values)) for what, values in facts.items()]
    loads = [e.load_average for e in known if e.load_average is not None]
    if loads:
        rows.append(("load when runs began", f"{min(loads):.2f} to {max(loads):.2f}"))
    return make_table("Environment", note, by_place("what|value"), rows)


def sources(figures: Iterable[Figure]) -> Table:
    """Return the records each chart was drawn from."""
    return make_table(
        "Sources",
        "Every run is a folder with run.json and a rank-<r>.jsonl for each rank.",
        by_place("chart|events and fields|run folders"),
        [(f"{each.title}, {each.label}", each.source, ", ".join(each.runs)) for each in figures],
    )


FACTS = {
    "hostname": "host",
    "processor": "processor",
    "cores": "cores",
    "memory_bytes": "memory",
    "operating_system": "operating system",
    "python": "Python",
    "torch": "PyTorch",
    "mpi": "MPI",  # None where a run used none
    "packages": "packages",
    "phalanx": "Phalanx",
    "commit": "commit",
}
"""Fields of an environment, in words."""


def facts_of(environment: Environment) -> dict[str, str]:
    """Return what is known of an environment, by the words of FACTS."""
    known = {name: getattr(environment, name) for name in FACTS}
    if environment.memory_bytes is not None:
        known["memory_bytes"] = f"{environment.memory_bytes / 2**30:.1f} GiB"
    packages = sorted(environment.packages.items())
    known["packages"] = ", ".join(f"{name} {version}" for name, version in packages)
    return {FACTS[name]: str(value) for name, value in known.items() if value is not None}
