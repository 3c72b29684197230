"""The tables of a parallelism study. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phalanx.records.events import MemoryEvent
from phalanx.report.content import Column, Table, by_place, make_table, with_rows, words
from phalanx.report.format import (
    MINUS,
    UNKNOWN,
    amount,
    fixed,
    one_decimal,
    percent,
    signed_percent,
    whole_percent,
)
from phalanx.report.parallelism.chart_rows import Line, by_role, deviation_mark
from phalanx.report.parallelism.rank_details import (
    PipelineStep,
    pipeline_step,
    state,
)
from phalanx.report.parallelism.study_data import (
    ModelData,
    ParallelCell,
    ParallelismStudyData,
    waiting_share,
)
from phalanx.report.rank_measures import RankMeasure


def lines(models: Sequence[ModelData]) -> list[Line]:
    return [Line(model=model.label, cell=cell) for model in models for cell in model.cells]


SCHEME: Column[Line] = words("scheme", lambda line: line.cell.scheme, short="scheme")
MODEL: Column[Line] = words("model", lambda line: line.model)
RANKS: Column[Line] = Column("ranks", lambda line: line.cell.ranks, short="p")
EPOCH: Column[Line] = Column(
    "epoch (s)", lambda line: line.cell.cell.epoch_s, fixed, short="epoch s"
)
MARK: Column[Line] = words("=", lambda line: deviation_mark(line.sent))
MARK_IN_SHORT: Column[Line] = words("", lambda line: deviation_mark(line.sent)[:1], short="=")
WAITING: Column[Line] = Column(
    "waiting", lambda line: waiting_share(line.cell), whole_percent, short="wait %"
)
LOSS: Column[Line] = Column(
    "loss", lambda line: line.cell.cell.loss, lambda loss: f"{loss.mean:.4f}", short="loss"
)
ACCURACY: Column[Line] = Column(
    "accuracy", lambda line: line.cell.cell.accuracy, lambda a: percent(a.mean, 2), short="acc. %"
)
STEP: Column[Line] = Column(
    "step (ms)",
    lambda line: line.cell.detail.step_s,
    lambda step_s: f"{step_s * 1e3:.2f}",
    short="step ms",
)
COMPARISON: tuple[Column[Line], ...] = (
    SCHEME,
    MODEL,
    RANKS,
    STEP,
    EPOCH,
    Column("speed-up", lambda line: line.cell.cell.speed_up, "{:.2f}".format, short="gain"),
    Column("efficiency", lambda line: line.cell.cell.efficiency, whole_percent),
    Column("sent", lambda line: line.most_sent and line.most_sent.found, amount, short="sent"),
    MARK,
    Column("kept", lambda line: line.state and line.state.found, amount, short="kept"),
    Column("of formula", lambda line: line.state and line.state.difference, signed_percent),
    WAITING,
    LOSS,
    ACCURACY,
)
COMPARISON_IN_SHORT = [MARK_IN_SHORT if column is MARK else column for column in COMPARISON]
TRAFFIC: tuple[Column[Line], ...] = (
    SCHEME,
    MODEL,
    RANKS,
    words("role", lambda o: o.role if len(o.ranks) == 1 else f"{len(o.ranks)} {o.role}s"),
    Column("sent", lambda line: _range([pair.found for pair in line.sent])),
    Column("formula", lambda line: _range([pair.formula for pair in line.sent])),
    MARK,
    Column("received", lambda line: _range([pair.found for pair in line.received])),
    Column("formula", lambda line: _range([pair.formula for pair in line.received])),
    words("=", lambda line: deviation_mark(line.received)),
    words("formula of sent", lambda line: line.formula("traffic_formula")),
)
MEMORY: tuple[Column[tuple[Line, RankMeasure, MemoryEvent]], ...] = (
    words("scheme", lambda kept: kept[0].cell.scheme),
    words("model", lambda kept: kept[0].model),
    Column("ranks", lambda kept: kept[0].cell.ranks),
    words("role", lambda kept: kept[0].role),
    Column("parameters", lambda kept: kept[2].parameters_bytes, amount),
    Column("gradients", lambda kept: kept[2].gradients_bytes, amount),
    Column("optimizer", lambda kept: kept[2].optimizer_bytes, amount),
    Column("together", lambda kept: state(kept[1]).found, amount),
    Column("formula", lambda kept: state(kept[1]).formula, amount),
    Column("off by", lambda kept: state(kept[1]).difference, signed_percent),
    Column("process", lambda kept: kept[2].resident_bytes, lambda gained: _gained(gained)),
    words("formula of memory", lambda kept: kept[1].expected.state_formula or ""),
)
PIPELINES: tuple[Column[tuple[Line, PipelineStep]], ...] = (
    words("schedule", lambda pair: pair[0].cell.scheme),
    words("model", lambda pair: pair[0].model),
    Column("ranks", lambda pair: pair[0].cell.ranks),
    Column("micro-batches", lambda pair: len(pair[1].micro_batches)),
    Column("bubble", lambda pair: pair[1].bubble, one_decimal),
    Column("formula", lambda pair: pair[0].cell.bubble[1], one_decimal),
    Column("epoch (s)", lambda pair: pair[0].cell.cell.epoch_s, fixed),
)
SCRATCH: tuple[Column[Line], ...] = (
    SCHEME,
    Column("hidden", lambda line: line.cell.hidden, short="hidden"),
    Column("workers", lambda line: line.cell.workers, short="workers"),
    replace(RANKS, short="ranks"),
    EPOCH,
    WAITING,
    Column("sent a rank and step", lambda o: _range([p.found for p in o.sent]), short="sent"),
    Column("formula", lambda line: _range([pair.formula for pair in line.sent])),
    MARK,
    LOSS,
    ACCURACY,
)
SCRATCH_IN_SHORT = [MARK_IN_SHORT if column is MARK else column for column in SCRATCH]


def all_tables(data: ParallelismStudyData) -> list[Table]:
    """Return the tables that have rows."""
    found = lines(data.models)
    roles = [line for model in data.models for line in by_role(model.cells, model.label)]
    return with_rows(
        make_table(
            "Schemes",
            "Completed runs that differ only in their seed, together. Times are medians; a step is "
            "as long as its slowest rank. Waiting: communication \N{DIVISION SIGN} training time, "
            "but for what a scheme exchanges within its forward and backward passes.",
            COMPARISON,
            found,
        ),
        make_table(
            "Bytes of a rank and step",
            "Counted over all epochs \N{DIVISION SIGN} steps, beside the formula; from the rank "
            "with the fewest to the one with the most. = is the same on every rank, else the worst "
            "rank. \N{GREEK CAPITAL LETTER PSI} is the number of parameters, p of ranks.",
            TRAFFIC,
            [line for line in roles if any(pair.found is not None for pair in line.sent)],
        ),
        make_table(
            "Memory of a rank",
            "Of the rank that keeps the most, between two steps; `process` is what the whole "
            "process has gained since before the model was made, with activations and buffers.",
            MEMORY,
            [(line, rank, rank.memory) for line in roles if (rank := line.fullest) and rank.memory],
        ),
        make_table(
            "Pipelines",
            "The idle share of the shortest step that was recorded.",
            PIPELINES,
            [(line, step) for line in found if (step := pipeline_step(line.cell.detail))],
        ),
        make_table(
            "From scratch",
            "The network without PyTorch; servers are not counted as workers.",
            SCRATCH,
            scratch_lines(data.scratch),
        ),
        make_table(
            "Left out",
            "Asked for, and impossible on this number of ranks or with this model.",
            by_place("run|error"),
            data.measures.study.left_out.items(),
        ),
    )


def scratch_lines(cells: Sequence[ParallelCell]) -> list[Line]:
    """The network from scratch, by scheme; the single process first."""
    ordered = sorted(cells, key=lambda cell: (cell.scheme != "alone", cell.scheme))
    return [Line(cell=cell) for cell in ordered]


def _range(values: Sequence[float | None]) -> str | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = amount(min(known)), amount(max(known))
    return low if low == high else f"{low} {UNKNOWN} {high}"


def _gained(num_bytes: int) -> str:
    return amount(num_bytes) if num_bytes >= 0 else f"{MINUS}{amount(-num_bytes)}"
