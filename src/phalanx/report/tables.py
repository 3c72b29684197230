"""The tables of the page: baselines, configurations, runs, environment, sources. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from phalanx.records.divergence import loss_text
from phalanx.records.schema import Environment
from phalanx.report.charts.figure import Figure
from phalanx.report.comparison import Cell, ParallelLayout, SeedSpread, layout_of, workload_labels
from phalanx.report.content import Table, make_table
from phalanx.report.format import UNKNOWN, fixed, grouped, joined, percent, share, span
from phalanx.report.measures import RunMeasure

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


def baselines(cells: Sequence[Cell]) -> Table:
    """The sequential program with different numbers of threads."""
    labels = workload_labels(cell.workload for cell in cells)
    alone = [cell for cell in _by_batch(cells) if cell.layout.strategy == "sequential"]
    return make_table(
        "Sequential baselines",
        "One process, no communication. One thread is the T(1) of every speed-up.",
        "model|batch#|threads#|epoch (s)#|images/s#|speed-up#|efficiency#|accuracy#",
        [
            (
                labels[cell.workload],
                cell.layout.batch_label,
                str(cell.layout.threads),
                fixed(cell.epoch_s),
                grouped(cell.images_per_s),
                speed_up_words(cell),
                share(cell.efficiency, 1),
                share(cell.accuracy.mean if cell.accuracy else None, 2),
            )
            for cell in alone
        ],
    )


def configurations(cells: Sequence[Cell]) -> Table:
    """Return a table of every configuration over its seeds."""
    labels = workload_labels(cell.workload for cell in cells)
    return make_table(
        "Configurations",
        "Completed runs that differ only in their seed, together. Times are medians over epochs "
        "and seeds, with the fastest and the slowest epoch; a speed-up has its interval of 95 %; "
        "accuracy is the mean over seeds, "
        "with the worst and the best.",
        "model|strategy|ranks#|threads#|batch#|epoch (s)#|range (s)#|user (s)#|system (s)#"
        "|images/s#"
        "|speed-up#|efficiency#|comm.#|accuracy#|over seeds#",
        [
            (labels[cell.workload], *_layout(cell.layout), *_measures(cell))
            for cell in _by_batch(cells)
        ],
    )


def executions(runs: Sequence[RunMeasure]) -> Table:
    """Return a table of every run of the plan with its status."""
    return make_table(
        "Runs",
        "Epoch times in the order they were run; the first is warm-up where there are three. User "
        "and system: processor time of all ranks and threads in such an epoch, which is more than "
        "the wall-clock time where several cores work, and counts waiting as far as it spins.",
        "run|status|strategy|ranks#|threads#|batch#|seed#|epoch (s)#|user (s)#|system (s)#"
        "|images/s#|comm.#"
        "|loss#|accuracy#|start-up (s)#|epochs (s)#|error",
        [_execution(measure) for measure in runs],
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
    return make_table("Environment", note, "what|value", rows)


def sources(figures: Iterable[tuple[str, Figure]]) -> Table:
    """Return the records each chart was drawn from.

    figures: with the label of their workload.
    """
    return make_table(
        "Sources",
        "Every run is a folder with run.json and a rank-<r>.jsonl for each rank.",
        "chart|events and fields|run folders",
        [
            (f"{figure.title}, {label}", figure.source, ", ".join(figure.runs))
            for label, figure in figures
        ],
    )


def status_text(measure: RunMeasure) -> str:
    """A mark and a word, so that it reads without colour."""
    return f"{MARKS[measure.status]} {SAYS.get(measure.status, measure.status)}"


def _layout(layout: ParallelLayout) -> tuple[str, ...]:
    return layout.strategy, str(layout.ranks), str(layout.threads), layout.batch_label


def _measures(cell: Cell) -> tuple[str, ...]:
    return (
        fixed(cell.epoch_s),
        f"{fixed(min(cell.epoch_times_s))} {UNKNOWN} {fixed(max(cell.epoch_times_s))}",
        *_processor(_mean_processor(cell)),
        grouped(cell.images_per_s),
        speed_up_words(cell),
        share(cell.efficiency, 1),
        share(cell.communication_share, 1),
        share(cell.accuracy.mean if cell.accuracy else None, 2),
        _seeds(cell.accuracy),
    )


def _mean_processor(cell: Cell) -> tuple[float, float] | None:
    known = [run.processor_s for run in cell.runs if run.processor_s is not None]
    if not known:
        return None
    return fmean(user for user, _ in known), fmean(system for _, system in known)


def _processor(times_s: tuple[float, float] | None) -> tuple[str, str]:
    return (UNKNOWN, UNKNOWN) if times_s is None else (fixed(times_s[0]), fixed(times_s[1]))


def _seeds(accuracy: SeedSpread | None) -> str:
    if accuracy is None:
        return UNKNOWN
    if accuracy.seeds == 1:
        return "1 seed"
    span = f"{accuracy.low * 100:.2f} {UNKNOWN} {percent(accuracy.high, 2)}"
    return f"{span}, {accuracy.seeds} seeds"


def _by_batch(cells: Sequence[Cell]) -> list[Cell]:
    """Workload after workload, in each batch after batch, in these the order of the plan."""
    workloads = list(dict.fromkeys(cell.workload for cell in cells))
    key = {workload: number for number, workload in enumerate(workloads)}
    return sorted(cells, key=lambda cell: (key[cell.workload], cell.layout.batch_size))


def _execution(measure: RunMeasure) -> tuple[str, ...]:
    last = measure.trained[-1] if measure.trained else None
    setting = measure.setting
    layout = _layout(layout_of(measure.run)) if measure.run else (UNKNOWN,) * 4
    startups = [rank.started.startup_s for rank in measure.ranks.values() if rank.started]
    return (
        measure.name,
        status_text(measure),
        *layout,
        str(setting.seed) if setting else UNKNOWN,
        fixed(measure.epoch_s),
        *_processor(measure.processor_s),
        grouped(measure.images_per_s),
        share(measure.communication_share, 1),
        UNKNOWN
        if last is None or last.validation_loss is None
        else loss_text(last.validation_loss),
        share(last.validation_accuracy if last else None, 2),
        fixed(max(startups, default=None)),
        " ".join(fixed(epoch.epoch_s) for epoch in measure.trained) or UNKNOWN,
        measure.error or "",
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


def speed_up_words(cell: Cell) -> str:
    """Format the speed-up, with its interval where there are enough epochs."""
    if cell.speed_up is None:
        return UNKNOWN
    interval = cell.speed_up_interval
    return f"{cell.speed_up:.2f}" + ("" if interval is None else f" ({span(interval)})")
