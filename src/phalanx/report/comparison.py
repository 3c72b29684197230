"""Runs that differ only in their seed form a cell; cells are compared with one another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, median
from typing import Protocol

from phalanx.records.schema import Run, Setting
from phalanx.report.format import percent
from phalanx.report.measures import RunMeasure
from phalanx.report.options import (
    MODEL_SIZES,
    Options,
    layout_options,
    named_with_options,
    varying_options,
    workload_options,
)
from phalanx.report.rank_measures import PARTS
from phalanx.report.schemes import scheme_of, scheme_phrase
from phalanx.report.statistics import Interval, Times, not_told_apart, ratio_of_times

TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, kw_only=True)
class TrainingWorkload:
    """A training apart from its layout. Only cells of one workload are compared in one chart."""

    model: str
    sizes: str  # chosen sizes of the model, e.g. "width 512"
    dataset: str
    epochs: int
    optimizer: str
    learning_rate: float  # before the learning-rate rule
    dtype: str
    others: Options = ()  # further deciding options, without seed and layout


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Distribution of the work: strategy, ranks, threads and batch."""

    strategy: str  # with the options that name a scheme: `mpi ring`
    ranks: int
    threads: int
    batch_size: int  # global, or of each rank
    batch_per_rank: bool
    others: Options = ()  # further options of the layout
    nodes: int = 1

    @property
    def workers(self) -> int:
        """Compute threads over all ranks: the cores that this layout asks for."""
        return self.ranks * self.threads

    @property
    def label(self) -> str:
        if self.strategy == "sequential":
            return f"sequential, {counted(self.threads, 'thread')}"
        return f"{self.strategy}, {self.span}"

    @property
    def width(self) -> str:
        """Label for marks and axes: 2 for 2 ranks, 2×4 with 4 threads each."""
        return f"{self.ranks}" if self.threads == 1 else f"{self.ranks}{TIMES}{self.threads}"

    @property
    def phrase(self) -> str:
        """The layout in a sentence: MPI on 2 ranks."""
        if self.strategy == "sequential":
            return f"sequential with {counted(self.threads, 'thread')}"
        return f"{scheme_phrase(self.strategy)} on {self.span}"

    @property
    def span(self) -> str:
        """4 ranks, or 2 ranks × 4 threads."""
        ranks = counted(self.ranks, "rank")
        if self.threads > 1:
            ranks += f" {TIMES} {counted(self.threads, 'thread')}"
        return ranks if self.nodes == 1 else f"{ranks} over {self.nodes} nodes"

    @property
    def batch_label(self) -> str:
        return f"{self.batch_size} a rank" if self.batch_per_rank else f"{self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """A value over the runs of a cell."""

    mean: float
    low: float
    high: float
    seeds: int  # number of different seeds

    @property
    def text(self) -> str:
        """98.20 %, from 98.06 % to 98.32 % over 4 seeds."""
        if self.seeds == 1:
            return f"{percent(self.mean, 2)} with one seed"
        ends = f"from {percent(self.low, 2)} to {percent(self.high, 2)}"
        return f"{percent(self.mean, 2)}, {ends} over {self.seeds} seeds"


@dataclass(frozen=True, kw_only=True)
class TrainingCell:
    """The completed runs of one workload in one layout, one for each seed."""

    workload: TrainingWorkload
    layout: ParallelLayout
    runs: tuple[RunMeasure, ...]
    cores: int  # usable by the process
    epoch_times_s: tuple[float, ...]  # of every seed, without warm-up
    epoch_s: float  # median of these
    images_per_s: float | None
    communication_share: float | None
    step_parts_s: tuple[float, ...] | None
    loss: SeedSpread | None  # validation, after the last epoch
    accuracy: SeedSpread | None
    speed_up: float | None = None  # against the sequential program with one thread
    speed_up_interval: Interval | None = None  # None where epochs are too few to tell

    @property
    def times(self) -> Times:
        """Seconds of the timed epochs, run by run."""
        return tuple(run.timed_s for run in self.runs)

    @property
    def accuracy_by_seed(self) -> dict[int, float]:
        """Validation accuracy after the last epoch; of runs of one seed the last."""
        return by_seed(self.runs, final_accuracy)

    @property
    def loss_by_seed(self) -> dict[int, float]:
        return by_seed(self.runs, final_loss)

    @property
    def is_sequential(self) -> bool:
        return self.layout.strategy == "sequential"

    @property
    def efficiency(self) -> float | None:
        return None if self.speed_up is None else self.speed_up / self.layout.workers

    @property
    def oversubscribed(self) -> bool:
        return self.layout.workers > self.cores


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def compare(runs: Iterable[RunMeasure]) -> tuple[TrainingCell, ...]:
    """Group the completed runs, in their order, and give every cell its speed-up."""
    groups: dict[tuple[TrainingWorkload, ParallelLayout], list[RunMeasure]] = {}
    for measure in runs:
        if measure.run and measure.status == "completed" and measure.epoch_s:
            key = (workload_of(measure.run), layout_of(measure.run))
            groups.setdefault(key, []).append(measure)
    cells = [_cell(workload, layout, group) for (workload, layout), group in groups.items()]
    return tuple(_with_speed_up(cell, cells) for cell in cells)


def workload_of(run: Run) -> TrainingWorkload:
    setting = run.setting
    given = run.config.get("lr")
    return TrainingWorkload(
        model=setting.model,
        sizes=_sizes(setting),
        dataset=setting.dataset,
        epochs=setting.epochs,
        optimizer=setting.optimizer,
        learning_rate=float(given) if isinstance(given, int | float) else setting.learning_rate,
        dtype=setting.dtype,
        others=workload_options(run),
    )


def _sizes(setting: Setting) -> str:
    return ", ".join(
        f"{name} {setting.options[name]}" for name in MODEL_SIZES if name in setting.options
    )


def layout_of(run: Run) -> ParallelLayout:
    setting = run.setting
    per_rank = run.config.get("per_rank_batch_size")
    # One rank's batch is the global batch, so sequential runs serve both kinds as reference.
    own = isinstance(per_rank, int) and setting.ranks > 1
    return ParallelLayout(
        strategy=named_with_options(scheme_of(setting), setting),
        ranks=setting.ranks,
        threads=setting.threads,
        batch_size=int(str(per_rank)) if own else setting.global_batch_size,
        batch_per_rank=own,
        others=layout_options(run),
        nodes=setting.nodes,
    )


def on_fewest_nodes(cells: Sequence[TrainingCell]) -> list[TrainingCell]:
    """Return the cells without those that spread the same ranks over more nodes than others do."""
    fewest: dict[ParallelLayout, int] = {}
    for layout in (cell.layout for cell in cells):
        key = replace(layout, nodes=1)
        fewest[key] = min(layout.nodes, fewest.get(key, layout.nodes))
    return [c for c in cells if c.layout.nodes == fewest[replace(c.layout, nodes=1)]]


def sequential_reference(cell: TrainingCell, cells: Iterable[TrainingCell]) -> TrainingCell | None:
    """The sequential program with one thread, same workload and batch: the T(1) of `cell`."""
    for other in cells:
        layout = other.layout
        if layout.strategy == "sequential" and layout.threads == 1:
            same_batch = layout.batch_size == cell.layout.batch_size
            if same_batch and other.workload == cell.workload:
                return other
    return None


def workload_labels(workloads: Iterable[TrainingWorkload]) -> dict[TrainingWorkload, str]:
    """A name for each: the model, and whatever else they differ in."""
    distinct = list(dict.fromkeys(workloads))
    names = [field.name for field in fields(TrainingWorkload) if field.name != "others"]
    varying = [name for name in names if len({getattr(s, name) for s in distinct}) > 1]
    words = {
        "sizes": "{}",
        "dataset": "{}",
        "epochs": "{} epochs",
        "optimizer": "{}",
        "learning_rate": "lr {:g}",
        "dtype": "{}",
    }
    return {
        workload: " · ".join(
            [
                workload.model,
                *(
                    words[n].format(value)
                    for n in varying
                    if n in words and (value := getattr(workload, n))
                ),
                *varying_options(workload.others, [other.others for other in distinct]),
            ]
        )
        for workload in distinct
    }


def main_batch(cells: Sequence[TrainingCell]) -> int:
    """The batch size that most cells have (the smallest of these): scaling is drawn at it."""
    sizes = [cell.layout.batch_size for cell in cells]
    return min(sizes, key=lambda size: (-sizes.count(size), size))


def _cell(
    workload: TrainingWorkload, layout: ParallelLayout, runs: Sequence[RunMeasure]
) -> TrainingCell:
    times_s = tuple(
        epoch.epoch_s
        for measure in runs
        for epoch in measure.epochs
        if epoch.epoch in measure.timed_epochs
    )
    shares = [r.communication_share for r in runs if r.communication_share is not None]
    samples = runs[0].trained[-1].samples
    return TrainingCell(
        workload=workload,
        layout=layout,
        runs=tuple(runs),
        cores=min(r.run.environment.cores for r in runs if r.run),
        epoch_times_s=times_s,
        epoch_s=median(times_s),
        images_per_s=samples / median(times_s) if samples else None,
        communication_share=fmean(shares) if shares else None,
        step_parts_s=_mean_parts(runs),
        loss=spread_over(runs, final_loss),
        accuracy=spread_over(runs, final_accuracy),
    )


def _mean_parts(runs: Sequence[RunMeasure]) -> tuple[float, ...] | None:
    parts = [r.step_parts_s for r in runs if r.step_parts_s]
    return tuple(fmean(p[i] for p in parts) for i in range(len(PARTS))) if parts else None


ValueOfRun = Callable[[RunMeasure], float | None]


def final_accuracy(run: RunMeasure) -> float | None:
    """Validation accuracy after the last epoch."""
    return run.final_accuracy


def final_loss(run: RunMeasure) -> float | None:
    return run.trained[-1].validation_loss if run.trained else None


def spread_over(runs: Sequence[RunMeasure], value_of: ValueOfRun) -> SeedSpread | None:
    """Return the mean and the ends of a value over runs; None where none has it."""
    known = [value for run in runs if (value := value_of(run)) is not None]
    seeds = {run.setting.seed for run in runs if run.setting}
    if not known:
        return None
    return SeedSpread(mean=fmean(known), low=min(known), high=max(known), seeds=len(seeds))


def by_seed(runs: Sequence[RunMeasure], value_of: ValueOfRun) -> dict[int, float]:
    """Return a value by seed; of runs of one seed that of the last."""
    return {
        run.setting.seed: value
        for run in runs
        if run.setting and (value := value_of(run)) is not None
    }


class HasRuns(Protocol):
    @property
    def runs(self) -> Sequence[RunMeasure]: ...


def runs_of(cells: Iterable[HasRuns]) -> list[str]:
    """Return the names of the runs behind cells."""
    return [run.name for cell in cells for run in cell.runs]


def _with_speed_up(cell: TrainingCell, cells: Sequence[TrainingCell]) -> TrainingCell:
    reference = sequential_reference(cell, cells)
    if reference is None:
        return cell
    return replace(
        cell,
        speed_up=reference.epoch_s / cell.epoch_s,
        speed_up_interval=None if cell is reference else speed_up(reference, cell),
    )


def speed_up(
    reference: TrainingCell, cell: TrainingCell, *, comparisons: int = 1
) -> Interval | None:
    """Return the interval of `cell`'s speed-up over `reference`, or None with too few epochs."""
    return ratio_of_times(reference.times, cell.times, comparisons=comparisons)


def undecided(best: TrainingCell, cells: Sequence[TrainingCell]) -> list[TrainingCell]:
    """Return the cells that are not significantly slower than `best`, the fastest one."""
    others = [cell for cell in cells if cell is not best]
    return not_told_apart(others, lambda cell: speed_up(cell, best, comparisons=len(others)))
