"""The tables of the page: baselines, configurations, runs, environment, sources. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from phalanx.records.divergence import loss_text
from phalanx.records.schema import Environment
from phalanx.report.charts.figure import Figure
from phalanx.report.comparison import (
    ParallelLayout,
    final_accuracy,
    final_loss,
    layout_of,
)
from phalanx.report.content import Column, Table, by_place, make_table, words
from phalanx.report.format import (
    fixed,
    grouped,
    joined,
    one_decimal,
    two_decimals,
)
from phalanx.report.measures import RunMeasure

T = TypeVar("T")

MARKS = {
    "completed": "\N{CHECK MARK}",
    "failed": "\N{BALLOT X}",
    "damaged": "\N{BALLOT X}",
    "interrupted": "\N{EM DASH}",
    "running": "\N{HORIZONTAL ELLIPSIS}",
    "planned": "\N{MIDDLE DOT}",
    "missing": "\N{MIDDLE DOT}",
}
SAYS = {"missing": "not run", "planned": "not run"}


def layout_columns(layout_of: Callable[[T], ParallelLayout | None]) -> list[Column[T]]:
    """Return the columns of how the work is split."""
    return [
        words("strategy", lambda one: (at := layout_of(one)) and at.strategy),
        Column("ranks", lambda one: (at := layout_of(one)) and at.ranks),
        Column("threads", lambda one: (at := layout_of(one)) and at.threads),
        Column("batch", lambda one: (at := layout_of(one)) and at.batch_label),
    ]


def processor_columns(times_of: Callable[[T], tuple[float, float] | None]) -> list[Column[T]]:
    """Return the columns of user and system time."""
    return [
        Column("user (s)", lambda one: (times := times_of(one)) and times[0], fixed),
        Column("system (s)", lambda one: (times := times_of(one)) and times[1], fixed),
    ]


RUN_LAYOUT: tuple[Column[RunMeasure], ...] = (
    words("run", lambda run: run.name),
    words("status", lambda run: f"{MARKS[run.status]} {SAYS.get(run.status, run.status)}"),
    *layout_columns(lambda run: run.run and layout_of(run.run)),
)
RUN_NODES = Column[RunMeasure]("nodes", lambda run: run.setting and run.setting.nodes)
EXECUTION: tuple[Column[RunMeasure], ...] = (
    Column("seed", lambda run: run.setting and run.setting.seed),
    Column("epoch (s)", lambda run: run.epoch_s, fixed),
    *processor_columns(lambda run: run.processor_s),
    Column("samples/s", lambda run: run.images_per_s, grouped),
    Column("comm.", lambda run: run.communication_share, one_decimal),
    Column("loss", final_loss, loss_text),
    Column("accuracy", final_accuracy, two_decimals),
    Column(
        "start-up (s)",
        lambda run: max(
            (r.started.startup_s for r in run.ranks.values() if r.started), default=None
        ),
        fixed,
    ),
    Column("epochs (s)", lambda run: " ".join(fixed(e.epoch_s) for e in run.trained) or None),
    words("error", lambda run: run.error or ""),
)


def executions(runs: Sequence[RunMeasure]) -> Table:
    """Return a table of every run of the plan with its status."""
    is_spread = any(run.setting and run.setting.nodes > 1 for run in runs)
    return make_table(
        "Runs",
        "Epoch times in the order they were run; the first is warm-up where there are three. User "
        "and system: processor time of all ranks and threads in such an epoch, which is more than "
        "the wall-clock time where several cores work, and counts waiting as far as it spins.",
        [*RUN_LAYOUT, *([RUN_NODES] if is_spread else []), *EXECUTION],
        runs,
    )


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


def sources(figures: Iterable[tuple[str, Figure]]) -> Table:
    """Return the records each chart was drawn from.

    figures: with the label of their workload.
    """
    return make_table(
        "Sources",
        "Every run is a folder with run.json and a rank-<r>.jsonl for each rank.",
        by_place("chart|events and fields|run folders"),
        [
            (f"{figure.title}, {label}", figure.source, ", ".join(figure.runs))
            for label, figure in figures
        ],
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
