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
    for what, value in (fact for environment in known for fact in _facts(environment)):
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


def _facts(environment: Environment) -> list[tuple[str, str]]:
    memory = environment.memory_bytes
    packages = sorted(environment.packages.items())
    facts = [
        ("host", environment.hostname),
        ("processor", environment.processor),
        ("cores", str(environment.cores)),
        ("memory", None if memory is None else f"{memory / 2**30:.1f} GiB"),
        ("operating system", environment.operating_system),
        ("Python", environment.python),
        ("PyTorch", environment.torch),
        ("MPI", environment.mpi),  # None where a run used none
        ("packages", ", ".join(f"{name} {version}" for name, version in packages)),
        ("Phalanx", environment.phalanx),
        ("commit", environment.commit),
    ]
    return [(what, value) for what, value in facts if value is not None]
