"""The tables of the page: baselines, configurations, runs, environment, sources. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TypeVar

from phalanx.records.divergence import loss_text
from phalanx.records.schema import Environment
from phalanx.report.charts.figure import Figure
from phalanx.report.comparison import (
    Cell,
    ParallelLayout,
    SeedSpread,
    final_accuracy,
    final_loss,
    layout_of,
    workload_labels,
)
from phalanx.report.content import Column, Table, by_place, make_table, words
from phalanx.report.format import (
    UNKNOWN,
    fixed,
    grouped,
    joined,
    one_decimal,
    percent,
    span,
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


LAYOUT: list[Column[Cell]] = layout_columns(lambda cell: cell.layout)
NODES = Column[Cell]("nodes", lambda cell: cell.layout.nodes)
EPOCH = Column[Cell]("epoch (s)", lambda cell: cell.epoch_s, fixed)
RATE = Column[Cell]("samples/s", lambda cell: cell.images_per_s, grouped)
SPEED_UP = Column[Cell]("speed-up", lambda cell: speed_up_words(cell))
EFFICIENCY = Column[Cell]("efficiency", lambda cell: cell.efficiency, one_decimal)
ACCURACY = Column[Cell]("accuracy", lambda cell: cell.accuracy and cell.accuracy.mean, two_decimals)
MEASURES: tuple[Column[Cell], ...] = (
    EPOCH,
    Column(
        "range (s)",
        lambda cell: " \N{EN DASH} ".join(fixed(end(cell.epoch_times_s)) for end in (min, max)),
    ),
    *processor_columns(lambda cell: _mean_processor(cell)),
    RATE,
    SPEED_UP,
    EFFICIENCY,
    Column("comm.", lambda cell: cell.communication_share, one_decimal),
    ACCURACY,
    Column("over seeds", lambda cell: cell.accuracy, lambda accuracy: _seeds(accuracy)),
)


def _model(cells: Sequence[Cell]) -> Column[Cell]:
    labels = workload_labels(cell.workload for cell in cells)
    return words("model", lambda cell: labels[cell.workload])


def _nodes(cells: Sequence[Cell]) -> list[Column[Cell]]:
    """Return the column of nodes, where any run has several."""
    return [NODES] if any(cell.layout.nodes > 1 for cell in cells) else []


def baselines(cells: Sequence[Cell]) -> Table:
    """The sequential program with different numbers of threads."""
    _, _, threads, batch = LAYOUT
    return make_table(
        "Sequential baselines",
        "One process, no communication. One thread is the T(1) of every speed-up.",
        [_model(cells), batch, threads, EPOCH, RATE, SPEED_UP, EFFICIENCY, ACCURACY],
        [cell for cell in _by_batch(cells) if cell.layout.strategy == "sequential"],
    )


def configurations(cells: Sequence[Cell]) -> Table:
    """Return a table of every configuration over its seeds."""
    return make_table(
        "Configurations",
        "Completed runs that differ only in their seed, together. Times are medians over epochs "
        "and seeds, with the fastest and the slowest epoch; a speed-up has its interval of 95 %; "
        "accuracy is the mean over seeds, "
        "with the worst and the best.",
        [_model(cells), *LAYOUT, *_nodes(cells), *MEASURES],
        _by_batch(cells),
    )


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


def _mean_processor(cell: Cell) -> tuple[float, float] | None:
    known = [run.processor_s for run in cell.runs if run.processor_s is not None]
    if not known:
        return None
    return fmean(user for user, _ in known), fmean(system for _, system in known)


def _seeds(accuracy: SeedSpread) -> str:
    if accuracy.seeds == 1:
        return "1 seed"
    span = f"{accuracy.low * 100:.2f} {UNKNOWN} {percent(accuracy.high, 2)}"
    return f"{span}, {accuracy.seeds} seeds"


def _by_batch(cells: Sequence[Cell]) -> list[Cell]:
    """Workload after workload, in each batch after batch, in these the order of the plan."""
    workloads = list(dict.fromkeys(cell.workload for cell in cells))
    key = {workload: number for number, workload in enumerate(workloads)}
    return sorted(cells, key=lambda cell: (key[cell.workload], cell.layout.batch_size))


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


def speed_up_words(cell: Cell) -> str | None:
    """Format the speed-up, with its interval where there are enough epochs."""
    if cell.speed_up is None:
        return None
    interval = cell.speed_up_interval
    return f"{cell.speed_up:.2f}" + ("" if interval is None else f" ({span(interval)})")
