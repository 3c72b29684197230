"""The page of a parallelism study: every way to split a training, beside its formulas."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from phalanx.report import parallelism_rows as rows_of
from phalanx.report import training_page as of_training
from phalanx.report.cells import Measure, Row
from phalanx.report.claims import AgainstBaseline, Fastest, key_figures, largest_gain
from phalanx.report.collectives import read_algorithms
from phalanx.report.content import Column, words
from phalanx.report.format import (
    MINUS,
    amount,
    fixed,
    one_decimal,
    percent,
    signed_percent,
    whole_percent,
)
from phalanx.report.marks import Axis, Bars, Lines, Spans
from phalanx.report.pages.collectives import ALGORITHMS
from phalanx.report.pages.scratch import SCRATCH, scratch_part
from phalanx.report.parallelism_rows import EQUAL, MEBIBYTE, NEAR_FORMULA, range_of
from phalanx.report.training import reader
from phalanx.report.training_frames import RUNS, with_ends
from phalanx.report.training_page import EPOCH, EPOCH_SOURCE, accuracy, epoch_time
from phalanx.report.values import ChartSection, Page, Part, Plot, Say, TableSpec, View

PSI = "\N{GREEK CAPITAL LETTER PSI} is the number of parameters, p the ranks."
STATES = {"parameters": "--forward", "gradients": "--backward", "optimizer": "--optimizer"}
ACTIONS = {
    "forward": "--forward",
    "backward": "--backward",
    "input gradient": "--backward",
    "weight gradient": "--optimizer",
}
TOOLTIP = (
    *("configuration", "epoch_s|epoch (s)|,.4~f", "step_ms|step (ms)|,.4~f"),
    *("speed_up|speed-up|.3f", "waiting||.1%", "loss||.4f", "accuracy||.2%"),
)


def split(row: Row) -> bool:
    return bool(row["strategy"] != "sequential")


BEST = AgainstBaseline(
    measure=EPOCH,
    base="one process",
    value=epoch_time,
    unit="per epoch",
    facts=accuracy,
    headline_phrase="configuration",
)
OVERVIEW_PLOT = Plot(
    name="overview",
    title="Time of an epoch, every scheme",
    caption="Fastest first; shapes show the number of ranks.",
    source=EPOCH_SOURCE,
    frame="overview",
    order=lambda row: row["epoch_s"],
    least=2,
    mark=Lines(
        x=Axis("epoch_s", "time of an epoch (s)", scale="auto", zero=True),
        y=Axis("strategy", scale="names"),
        series="kind",
        shape="ranks",
        joined=False,
        tooltip=TOOLTIP,
    ),
)
SPEED_UP_PLOT = Plot(
    name="speed-up",
    title="Speed-up",
    caption="Speed-up over the sequential program; the dashed line is the ideal, the number of "
    "ranks.",
    source=EPOCH_SOURCE,
    known="speed_up",
    split="group",
    least=2,
    mark=Lines(
        x=Axis("ranks", "ranks", scale="counts"),
        y=Axis("speed_up", "speed-up, T(1) \N{DIVISION SIGN} T(p)", scale="log"),
        ideal="datum.ranks",
        tooltip=TOOLTIP,
        pixels=300,
    ),
)
_bars = partial(Bars, by="bar", words="words")
WAITING_PLOT = Plot(
    name="waiting",
    title="Share of waiting",
    caption="Exposed communication \N{DIVISION SIGN} training time, mean over the ranks that "
    "train. Exchanges of sharded and split models within their forward and backward passes count "
    "as compute. Number of ranks in brackets.",
    source="step events: communication_s; epoch events: train_s",
    frame="waits",
    split="group",
    mark=_bars(
        x=Axis("waiting", "share of the training time", form="%", zero=True),
        colour="--communication",
        tooltip=("label", "words|waiting"),
    ),
)
LOSS = (
    "Over all ranks, before the update, smoothed over neighbouring steps; each scheme on its "
    "largest number of ranks. Lines of schemes with the same update coincide"
)
_loss_lines = partial(
    Lines,
    y=Axis("loss", "training loss", scale="auto"),
    marked=False,
    tooltip=("label", "step:Q", "trained_s|time (s)|,.4~f", "loss||.5f"),
)
_loss_plot = partial(
    Plot,
    source="step events of all ranks: loss_sum, samples, and the five times",
    frame="steps",
    split="group",
)
LOSS_STEP_PLOT = _loss_plot(
    name="loss-step",
    title="Loss against step",
    caption=f"{LOSS}.",
    mark=_loss_lines(x=Axis("step", "step", form="d")),
)
LOSS_TIME_PLOT = _loss_plot(
    name="loss-time",
    title="Loss against time",
    caption=f"{LOSS}, one slower than the other.",
    mark=_loss_lines(x=Axis("trained_s", "training time (s)", scale="auto", zero=True)),
)
SENT_PLOT = Plot(
    name="sent",
    title="Bytes sent, counted and by formula",
    caption="Bars are counted bytes of the rank that sends the most, the upright stroke is the "
    "formula; = means that both agree on every rank. Number of ranks in brackets.",
    source="epoch events: sent_bytes; started events: expected.sent_bytes",
    frame="roles",
    where=split,
    known="sent_mb",
    split="group",
    mark=_bars(
        x=Axis("sent_mb", "MB that the busiest rank sends in a step", zero=True),
        colour="--forward",
        formula="formula_mb",
        tooltip=("label", "words|sent", "formula_mb|formula (MB)|,.6~f", "formula"),
    ),
)
MEMORY_PLOT = Plot(
    name="memory",
    title="Memory for training, measured and by formula",
    caption="Parameters, gradients and optimizer state of the rank with the most; the upright "
    "stroke is the formula. Number of ranks in brackets.",
    source="memory events; started events: expected.state_bytes",
    frame="memory",
    split="group",
    mark=Spans(
        by="bar",
        ends=("begin_mb", "end_mb"),
        title="MB of a rank",
        kind="part",
        colours=STATES,
        tick="formula_mb",
        whole="all_mb",
        words="words",
        tooltip=(
            *("label", "part", "part_mb|MB|,.4~f", "all_mb|together (MB)|,.4~f"),
            *("formula_mb|formula (MB)|,.4~f", "formula"),
        ),
    ),
)
STALENESS_PLOT = Plot(
    name="staleness",
    title="Staleness",
    caption="Age of the parameters from which an update was computed: updates by other workers "
    "between reading and writing; 0 for a synchronous scheme.",
    source="epoch events: staleness",
    frame="staleness",
    split="label",
    mark=Bars(
        by="staleness",
        x=Axis("share", "share of updates", form="%", zero=True),
        colour="--rank-3",
        tooltip=("staleness:O", "updates||,d", "share||.1%"),
    ),
)
PIPELINE_PLOT = Plot(
    name="pipeline",
    title="Pipelines, as they ran",
    caption="The shortest recorded step; numbers are micro-batches. White is waiting: for a "
    "neighbour, a message or, if ranks share cores, a core. The percentages above each chart are "
    "the idle part of the step, measured and by the schedule's formula.",
    source="action events: stage, micro_batch, kind, began_s, ended_s",
    frame="actions",
    split="strategy",
    split_label="pipeline",
    mark=Spans(
        by="row",
        ends=("begin_ms", "end_ms"),
        title="time of a step (ms)",
        kind="kind",
        colours=ACTIONS,
        text="micro_batch",
        room=0.022,
        tooltip=(
            *("row|stage", "kind", "micro_batch:Q|micro-batch", "begin_ms|from (ms)|,.3f"),
            "end_ms|to (ms)|,.3f",
        ),
    ),
)


def wait_rows(view: View) -> list[Row]:
    known = [row for row in view.frame("cells") if split(row) and row["waiting"] is not None]
    return [{**row, "words": percent(row["waiting"], 0)} for row in known]


def overview_rows(view: View) -> list[Row]:
    return [{**r, "kind": r["group"] or "sequential program"} for r in view.frame("cells")]


def _bytes(column: str) -> Any:
    return lambda row: None if row[column] is None else amount(row[column] * MEBIBYTE)


def _kept(name: str) -> Any:
    return lambda row: amount(getattr(row["_fullest"].memory, f"{name}_bytes"))


def _gained(row: Row) -> str:
    gained = row["_fullest"].memory.resident_bytes
    return amount(gained) if gained >= 0 else f"{MINUS}{amount(-gained)}"


def _in_memory(name: str, form: Any) -> Column[Row]:
    titles = {"found": "together", "difference": "off by"}
    return Column(titles.get(name, name), lambda row: getattr(row["_state"], name), form)


SCHEME: tuple[Column[Row], ...] = (
    words("scheme", "strategy", short="scheme"),
    words("model", "panel"),
    Column("ranks", "ranks", short="p"),
)
SCHEMES = TableSpec(
    title="Schemes",
    on_terminal=True,
    note="Completed runs, grouped over seeds. Times are medians; the time of a step is that of its "
    "slowest rank. Waiting: communication \N{DIVISION SIGN} training time, without exchanges "
    "within the forward and backward passes.",
    columns=(
        *SCHEME,
        Column("step (ms)", "step_ms", "{:.2f}".format, short="step ms", only="wide"),
        Column("epoch (s)", "epoch_s", fixed, short="epoch s"),
        Column("speed-up", with_ends("speed_up")),
        Column("gain", "speed_up", "{:.2f}".format, short="gain", only="terminal"),
        Column("efficiency", "efficiency", whole_percent),
        Column("sent", _bytes("sent_mb"), short="sent"),
        words("=", "mark"),
        words("equal", lambda row: row["mark"][:1], short="=", only="terminal"),
        Column("kept", _bytes("state_mb"), short="kept"),
        Column("of formula", "state_off", signed_percent),
        Column("waiting", "waiting", whole_percent, short="wait %"),
        Column("loss", "loss", "{:.4f}".format, short="loss"),
        Column("accuracy", "accuracy", lambda value: percent(value, 2), short="acc. %"),
    ),
)
TRAFFIC = TableSpec(
    title="Bytes of a rank and step",
    note="Counted over all epochs \N{DIVISION SIGN} steps, compared with the formula; from the "
    "rank with the fewest to that with the most. = means equal on every rank, else the worst. "
    f"{PSI}",
    frame="roles",
    where=lambda row: row["sent_mb"] is not None,
    columns=(
        *SCHEME,
        words(
            "role", lambda r: r["role"] if r["num_ranks"] == 1 else f"{r['num_ranks']} {r['role']}s"
        ),
        Column("sent", lambda row: range_of(row["_sent"], "found")),
        Column("formula", lambda row: range_of(row["_sent"], "formula")),
        words("=", "mark"),
        Column("received", lambda row: range_of(row["_received"], "found")),
        Column("by formula", lambda row: range_of(row["_received"], "formula")),
        words("formula of sent", "formula"),
    ),
)
MEMORY = TableSpec(
    title="Memory of a rank",
    note="The rank with the most, between two steps; `process` is the growth of the process since "
    "before the model was made, with activations and buffers.",
    frame="roles",
    where=lambda row: row["_fullest"] is not None,
    columns=(
        *SCHEME,
        words("role", "role"),
        *(Column(name, _kept(name)) for name in ("parameters", "gradients", "optimizer")),
        _in_memory("found", amount),
        _in_memory("formula", amount),
        _in_memory("difference", signed_percent),
        Column("process", _gained),
        words("formula of memory", lambda row: row["_fullest"].expected.state_formula or ""),
    ),
)
PIPELINES = TableSpec(
    title="Pipelines",
    note="Idle share of the shortest recorded step.",
    frame="pipelines",
    columns=(
        *SCHEME,
        Column("micro-batches", "num_micro_batches"),
        Column("bubble", "bubble", one_decimal),
        Column("formula", "bubble_formula", one_decimal),
        Column("epoch (s)", "epoch_s", fixed),
    ),
)


def facts(view: View) -> list[str]:
    schemes = {row["strategy"] for row in view.frame("cells")}
    kinds = {row["group"] for row in view.frame("cells")} - {None}
    return [f"{len(schemes)} schemes of {len(kinds)} kinds"] if schemes else []


PARALLELISM = Page(
    read=reader(rows_of.of_run, counts=rows_of.is_scheme, finish=rows_of.finish),
    baseline=of_training.SEQUENTIAL,
    quantities=(
        *of_training.QUANTITIES,
        Measure("step_ms", how=lambda values: values[0]),
        Measure("waiting", how=fmean),
        lambda row, *_: rows_of.cost_columns(row),
    ),
    frames={
        "overview": overview_rows,
        "waits": wait_rows,
        "steps": rows_of.loss_rows,
        "roles": rows_of.role_rows,
        "memory": rows_of.memory_rows,
        "staleness": rows_of.staleness_rows,
        "actions": rows_of.action_rows,
        "pipelines": rows_of.pipeline_rows,
        "left out": rows_of.left_out_rows,
    },
    headline=largest_gain(BEST, "No scheme is significantly faster than one process"),
    facts=facts,
    keys=key_figures(BEST),
    claims=(
        BEST,
        Fastest(
            measure=EPOCH,
            noun="schemes",
            facts=lambda cell: [f"{epoch_time(cell)} per epoch"],
            within="ranks",
            at="on {} ranks",
            phrase="scheme",
            where=lambda cell: split({"strategy": cell["strategy"]}) and cell["ranks"] > 1,
            note="Fastest: the shortest median epoch among schemes on the same number of ranks, if "
            "the intervals of its ratios to all others exclude 1.",
        ),
        Say(rows_of.losses_agree),
        Say(
            rows_of.formulas_hold,
            note="Memory: parameters, gradients and optimizer state of a rank between two steps; "
            f"bytes: sent by each rank per step. Equal to the formula: bytes within {EQUAL}, "
            f"memory within {percent(NEAR_FORMULA, 0)}. {PSI}",
        ),
        Say(rows_of.least_memory),
        Say(
            rows_of.drift,
            note="Splitting changes the time but not the update, except for asynchronous servers "
            "and local steps. Runs are paired by seed; those of one seed start from the same "
            "weights.",
        ),
    ),
    leading=(OVERVIEW_PLOT,),
    sections=(
        ChartSection("Time", (SPEED_UP_PLOT, WAITING_PLOT)),
        ChartSection("Loss", (LOSS_STEP_PLOT, LOSS_TIME_PLOT)),
        ChartSection("Bytes and memory, compared with their formulas", (SENT_PLOT, MEMORY_PLOT)),
        ChartSection("Staleness", (STALENESS_PLOT,)),
        ChartSection("Pipelines", (PIPELINE_PLOT,)),
    ),
    tables=(
        *(SCHEMES, TRAFFIC, MEMORY, PIPELINES),
        TableSpec(
            title="Left out",
            note="Requested, but impossible on this number of ranks or with this model.",
            frame="left out",
            columns=(words("run", "run"), words("error", "error")),
        ),
        RUNS,
    ),
    parts=(
        Part(SCRATCH, scratch_part),
        Part(ALGORITHMS, lambda data: read_algorithms(data.folder)),
    ),
)
