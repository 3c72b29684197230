"""Quantities, charts and claims that the pages of all trainings have to offer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

from phalanx.report.cells import Cell, Measure, Row, baseline, change, derived, gain
from phalanx.report.claims import AgainstBaseline, FarthestAccuracy, Fastest
from phalanx.report.content import numbers
from phalanx.report.format import percent, seconds
from phalanx.report.marks import Axis, Bars, Lines, Spans
from phalanx.report.theme import PHASES
from phalanx.report.training import TIMES_SIGN
from phalanx.report.values import Plot

SEQUENTIAL = baseline(same=("batch_size",), strategy="sequential", threads=1)
"""The sequential program with one thread, of the same batch: the T(1) of every speed-up."""
EPOCH = Measure("epoch_s", "time of an epoch")
ACCURACY = Measure("accuracy", "accuracy", how=fmean, better="higher")
LOSS = Measure("loss", "loss", how=fmean)
COMMUNICATION = Measure("communication", "communication", how=fmean)
USER = Measure("user_s", how=fmean)
SYSTEM = Measure("system_s", how=fmean)
SAMPLES = Measure("samples", how=lambda values: values[0])
SPEED_UP = gain("speed_up", EPOCH)
RATE = derived(
    "rate",
    lambda row: row["samples"] / row["epoch_s"] if row["samples"] and row["epoch_s"] else None,
)
EFFICIENCY = derived(
    "efficiency", lambda row: None if row["speed_up"] is None else row["speed_up"] / row["workers"]
)
QUANTITIES = (
    *(EPOCH, ACCURACY, LOSS, COMMUNICATION, USER, SYSTEM, SAMPLES, SPEED_UP, RATE, EFFICIENCY),
    change("accuracy_change", ACCURACY),
)
"""Quantities of every training, where it has measured them."""


def shown(row: Row | Cell) -> bool:
    """Return whether a cell is at the main batch, on the fewest nodes for its ranks."""
    return bool(row["shown"])


def main(row: Row | Cell) -> bool:
    return bool(row["main"])


def epoch_time(cell: Cell) -> str:
    epoch_s = EPOCH.estimate(cell)
    return "" if epoch_s is None else seconds(epoch_s)


def rate(cell: Cell) -> list[str]:
    """Return the samples per second in words, where they were counted."""
    epoch_s, samples = EPOCH.estimate(cell), SAMPLES.estimate(cell)
    return [f"{samples / epoch_s:,.0f} samples/s"] if epoch_s and samples else []


def accuracy(cell: Cell) -> list[str]:
    """Return the final accuracy in words, where it was measured."""
    value = ACCURACY.estimate(cell)
    return [] if value is None else [f"{percent(value, 2)} accuracy"]


def fastest_sequential(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """Return the fastest run of the sequential program, with any number of threads."""
    alone = [each for each in cells if each["strategy"] == "sequential"]
    found = EPOCH.ordered(alone)
    return found[0] if found and found[0]["threads"] > 1 and cell not in alone else None


BEST = AgainstBaseline(
    measure=EPOCH,
    base="one thread",
    value=epoch_time,
    unit="per epoch",
    facts=accuracy,
    where=shown,
)
"""The fastest configuration against the sequential program with one thread."""
BEST_AGAINST_THREADS = AgainstBaseline(measure=EPOCH, to=fastest_sequential, where=shown)
FASTEST = Fastest(
    measure=EPOCH,
    noun="configurations",
    facts=lambda cell: [f"{epoch_time(cell)} per epoch", *rate(cell)],
    where=main,
    note="Fastest: the shortest median epoch, if the intervals of its ratios to all others exclude "
    "1; the first epoch is left out as warm-up if there are at least three. Intervals are 95 % "
    "bootstrap intervals over runs, corrected for the number of comparisons of a claim.",
)
FARTHEST_ACCURACY = FarthestAccuracy(
    measure=ACCURACY,
    where=main,
    note="Accuracy: on validation data after the last epoch, of the configuration farthest from "
    "the sequential program, paired by seed.",
)


def worker_title(rows: Sequence[Row]) -> str:
    """Return the axis title for the number of workers in `rows`."""
    if any(row["strategy"] != "sequential" and row["threads"] != 1 for row in rows):
        return f"ranks {TIMES_SIGN} threads"
    if all(row["strategy"] == "sequential" for row in rows):
        return "threads"
    alone = {row["threads"] for row in rows if row["strategy"] == "sequential"}
    return "ranks (sequential: threads)" if alone - {1} else "ranks"


def accuracy_domain(rows: Sequence[Row]) -> tuple[float, float]:
    """Return an axis domain that covers all seeds, wide enough that noise is no trend."""
    low, high = min(numbers(rows, "accuracy_low")), max(numbers(rows, "accuracy_high"))
    middle, half = (low + high) / 2, max((high - low) * 0.6, 0.0025)
    return middle - half, middle + half


EPOCH_SOURCE = "epoch events: train_s of the slowest rank"
EVALUATIONS = "evaluation events: loss_sum, correct, samples of all ranks; epoch events: train_s"
TOOLTIP = (
    *("configuration", "batch", "epoch_s|epoch (s)|,.4~f", "rate|samples/s|,.0f"),
    *("speed_up|speed-up|.3f", "efficiency||.1%", "communication||.1%", "accuracy||.2%"),
    "seeds:Q",
)
"""Exact values of a configuration."""
WORKERS = Axis("workers", worker_title, scale="counts")
_by_workers = partial(
    Lines,
    x=WORKERS,
    detail="line",
    tooltip=TOOLTIP,
    limit="cores",
    limit_name="{} cores",
)
SPEED_UP_PLOT = Plot(
    name="speed-up",
    title="Speed-up",
    caption="Speed-up over the sequential program with one thread; the dashed line is the ideal.",
    source=EPOCH_SOURCE,
    where=shown,
    known="speed_up",
    least=2,
    mark=_by_workers(
        y=Axis("speed_up", "speed-up, T(1) \N{DIVISION SIGN} T(p)", zero=True),
        ideal="datum.workers",
    ),
)
EFFICIENCY_PLOT = Plot(
    name="efficiency",
    title="Efficiency",
    caption=f"Speed-up divided by ranks {TIMES_SIGN} threads; 100 % is the ideal.",
    source=EPOCH_SOURCE,
    where=shown,
    known="efficiency",
    least=2,
    mark=_by_workers(y=Axis("efficiency", "efficiency", form="%", zero=True), ideal="1"),
)
EPOCH_PLOT = Plot(
    name="epoch-time",
    title="Epoch time",
    caption="Median over epochs and seeds; bars run from the fastest epoch to the slowest.",
    source=EPOCH_SOURCE,
    where=shown,
    least=2,
    mark=_by_workers(
        y=Axis("epoch_s", "time of an epoch (s)", scale="auto", zero=True), spread=True
    ),
)
COMMUNICATION_PLOT = Plot(
    name="communication",
    title="Share of communication",
    caption="Share of the training time that ranks waited for gradients, mean over ranks.",
    source="step events: communication_s; epoch events: train_s",
    where=lambda row: row["shown"] and row["strategy"] != "sequential",
    known="communication",
    least=2,
    mark=Lines(
        x=Axis("ranks", "ranks", scale="counts"),
        y=Axis("communication", "share of training time", form="%", zero=True),
        tooltip=TOOLTIP,
    ),
)
PARTS_PLOT = Plot(
    name="step",
    title="Where a step\N{RIGHT SINGLE QUOTATION MARK}s time goes",
    caption="Mean step, over ranks and steps: data, forward, backward, exposed communication, "
    "optimizer.",
    source="step events: data_s, forward_s, backward_s, communication_s, optimizer_s",
    frame="parts",
    where=shown,
    mark=Spans(
        by="bar",
        ends=("start_ms", "end_ms"),
        title="time of a step (ms)",
        kind="part",
        colours=PHASES,
        text="letter",
        letters=True,
        tooltip=("configuration", "part", "part_ms|time (ms)|,.4f", "share|share of the step|.1%"),
    ),
)
OVERLAP_PLOT = Plot(
    name="overlap",
    title="Hidden and exposed communication",
    caption="Mean step, over ranks: communication hidden behind the backward pass, and exposed "
    "communication. The stroke: the most that could be hidden, as limited by the last bucket and "
    "the length of the backward pass.",
    source="step events: hidden_s, communication_s, last_bucket_s, backward_s",
    frame="overlap",
    mark=Spans(
        by="bar",
        ends=("start_ms", "end_ms"),
        title="communication of a step (ms)",
        kind="kind",
        colours={"hidden": "--backward", "exposed": "--communication"},
        tick="hideable_ms",
        tooltip=(
            "bar|of",
            "kind",
            "time_ms|time (ms)|,.4f",
            "hideable_ms|could be hidden (ms)|,.4f",
        ),
    ),
)
LINKS_PLOT = Plot(
    name="links",
    title="Share of a step by link",
    caption="Mean step: exchange of gradients in the memory of a node and between nodes, as "
    "measured on the last rank to arrive, and the waits of the other ranks for it, mean over "
    "ranks. Lines: 95 % intervals over runs.",
    source="step events: communication_s, node_s, network_s of all ranks",
    frame="links",
    mark=Bars(
        by="configuration",
        x=Axis("share", "share of a step", form="%", zero=True),
        series="link",
        spread=True,
        tooltip=(
            *("configuration", "link", "share||.1%", "share_low|from|.1%", "share_high|to|.1%"),
            *("step_ms|step (ms)|,.4f", "runs:Q"),
        ),
    ),
)


def curve(name: str, title: str, y: Axis, **more: Any) -> Plot:
    """Return the chart of a value of every epoch against the training time."""
    tooltip = (
        *("curve", "configuration", "status", "epoch:Q", "trained_s|training time (s)|,.4~f"),
        *("train_loss|training loss|.5f", "validation_loss|validation loss|.5f"),
        "validation_accuracy|validation accuracy|.2%",
    )
    x = Axis("trained_s", "training time (s)", scale="auto", zero=True)
    return Plot(
        name=name,
        title=title,
        caption="One mark per epoch, mean over seeds; training time only, evaluation left out.",
        source=EVALUATIONS,
        frame="epochs",
        known=y.field,
        mark=Lines(x=x, y=y, detail="curve", dash="width", tooltip=tooltip),
        **more,
    )


METRICS_PLOT = Plot(
    name="metrics",
    title="Metrics of the program",
    caption="Values of run.log over updates, one line per run. Choose a metric below the chart.",
    source="metrics events of rank 0",
    frame="metrics",
    mark=Lines(
        x=Axis("step", "updates"),
        y=Axis("value", "value"),
        detail="run",
        dash="width",
        choose="metric",
        tooltip=("run", "configuration", "metric", "step:Q", "value||.6~g"),
    ),
)
TRAIN_LOSS_PLOT = curve(
    "train-loss",
    "Training loss against time",
    Axis("train_loss", "training loss", scale="auto"),
    where=lambda row: row["shown"] and not row["is_validated"],
)
LOSS_PLOT = curve(
    "loss",
    "Validation loss against time",
    Axis("validation_loss", "validation loss", scale="auto"),
    where=shown,
)
ACCURACY_PLOT = curve(
    "accuracy",
    "Validation accuracy against time",
    Axis("validation_accuracy", "validation accuracy", form=".1%"),
    where=shown,
)
TIME_AND_ACCURACY_PLOT = Plot(
    name="time-accuracy",
    title="Epoch time against accuracy",
    caption="Up and to the left is better; bars run from the worst seed to the best.",
    source=EVALUATIONS,
    where=shown,
    known="accuracy",
    least=2,
    mark=Lines(
        x=Axis("epoch_s", "time of an epoch (s)", scale="auto"),
        y=Axis("accuracy", "final validation accuracy", form=".2%", domain=accuracy_domain),
        spread=True,
        joined=False,
        tooltip=TOOLTIP,
    ),
)
_over_batches = partial(
    Lines,
    x=Axis("batch_size", "batch size in samples", scale="counts"),
    detail="configuration",
    dash="width",
    tooltip=TOOLTIP,
)
BATCH_TIME_PLOT = Plot(
    name="batch-time",
    title="Batch size and epoch time",
    caption="Median epoch at each global batch size, for configurations with several.",
    source=EPOCH_SOURCE,
    frame="batches",
    mark=_over_batches(y=Axis("epoch_s", "time of an epoch (s)", zero=True)),
)
BATCH_ACCURACY_PLOT = Plot(
    name="batch-accuracy",
    title="Batch size and accuracy",
    caption="After the last epoch, mean over seeds.",
    source="evaluation events: correct, samples of all ranks",
    frame="batches",
    known="accuracy",
    mark=_over_batches(y=Axis("accuracy", "final validation accuracy", form=".1%")),
)


def _by_rank(name: str, title: str, field: str, form: str) -> Plot:
    return Plot(
        name=name,
        title=f"{title[0].upper()}{title[1:]}, rank by rank",
        caption="Each rank on its shard of the training data. Choose a run below the chart.",
        source="epoch events of each rank: loss_sum, correct, samples",
        frame="ranks",
        known=field,
        mark=Lines(
            x=Axis("epoch", "epoch", scale="counts"),
            y=Axis(field, title, form=form),
            series="rank",
            choose="run",
            tooltip=(
                *("run", "rank", "epoch:Q", "samples||,d", "train_loss|training loss|.5f"),
                *("train_accuracy|training accuracy|.2%", "train_s|epoch (s)|,.4~f"),
            ),
        ),
    )


RANK_LOSS_PLOT = _by_rank("rank-loss", "training loss", "train_loss", "")
RANK_ACCURACY_PLOT = _by_rank("rank-accuracy", "training accuracy", "train_accuracy", ".1%")
