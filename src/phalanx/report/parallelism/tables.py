"""The tables of a parallelism study. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.report.content import Table, make_table, with_rows
from phalanx.report.format import MINUS, UNKNOWN, amount, fixed, percent, share, signed_percent
from phalanx.report.parallelism.chart_rows import deviation_mark, fullest
from phalanx.report.parallelism.rank_details import FormulaCheck, RankDetail, pipeline_step, state
from phalanx.report.parallelism.study_data import (
    ModelData,
    ParallelCell,
    ParallelismStudyData,
    waiting_share,
)


def all_tables(data: ParallelismStudyData) -> list[Table]:
    """Return the tables that have rows."""
    return with_rows(
        comparison(data.models),
        traffic(data.models),
        memory(data.models),
        pipelines(data.models),
        scratch(data.scratch),
        left_out(data.measures.study.left_out),
    )


def comparison(models: Sequence[ModelData]) -> Table:
    return make_table(
        "Schemes",
        "Completed runs that differ only in their seed, together. Times are medians; a step is as "
        "long as its slowest rank. Waiting: communication \N{DIVISION SIGN} training time, but for "
        "what a scheme exchanges within its forward and backward passes.",
        "scheme|model|ranks#|step (ms)#|epoch (s)#|speed-up#|efficiency#|sent#|=|kept#|of formula#"
        "|waiting#|loss#|accuracy#",
        [comparison_row(model, cell) for model in models for cell in model.cells],
    )


def comparison_row(model: ModelData, cell: ParallelCell) -> tuple[str, ...]:
    """The cells of a row: the rank that sends, and that keeps, the most stands for all."""
    measured, detail = cell.cell, cell.detail
    pairs = [detail.sent(rank) for rank in detail.ranks]
    known = [pair.found for pair in pairs if pair.found is not None]
    kept = _fullest(cell)
    return (
        cell.scheme,
        model.label,
        str(cell.ranks),
        UNKNOWN if detail.step_s is None else f"{detail.step_s * 1e3:.2f}",
        fixed(measured.epoch_s),
        UNKNOWN if measured.speed_up is None else f"{measured.speed_up:.2f}",
        share(measured.efficiency, 0),
        amount(max(known)) if known else UNKNOWN,
        deviation_mark(pairs),
        UNKNOWN if kept is None or kept.found is None else amount(kept.found),
        UNKNOWN if kept is None else _of_formula(kept),
        share(waiting_share(cell), 0),
        UNKNOWN if measured.loss is None else f"{measured.loss.mean:.4f}",
        UNKNOWN if measured.accuracy is None else percent(measured.accuracy.mean, 2),
    )


def traffic(models: Sequence[ModelData]) -> Table:
    """Bytes of each role, counted and by formula."""
    rows = []
    for model in models:
        for cell in model.cells:
            for role in cell.detail.roles:
                ranks = cell.detail.of_role(role)
                sent = [cell.detail.sent(rank) for rank in ranks]
                received = [cell.detail.received(rank) for rank in ranks]
                if any(pair.found is not None for pair in sent):
                    rows.append(
                        (
                            cell.scheme,
                            model.label,
                            str(cell.ranks),
                            role if len(ranks) == 1 else f"{len(ranks)} {role}s",
                            _range([pair.found for pair in sent]),
                            _range([pair.formula for pair in sent]),
                            deviation_mark(sent),
                            _range([pair.found for pair in received]),
                            _range([pair.formula for pair in received]),
                            deviation_mark(received),
                            _formula(ranks, "traffic_formula"),
                        )
                    )
    return make_table(
        "Bytes of a rank and step",
        "Counted over all epochs \N{DIVISION SIGN} steps, beside the formula; from the rank with "
        "the fewest to the one with the most. = is the same on every rank, else the worst rank. "
        "\N{GREEK CAPITAL LETTER PSI} is the number of parameters, p of ranks.",
        "scheme|model|ranks#|role|sent#|formula#|=|received#|formula#|=|formula of sent",
        rows,
    )


def memory(models: Sequence[ModelData]) -> Table:
    rows = []
    for model in models:
        for cell in model.cells:
            for role in cell.detail.roles:
                rank = fullest(cell.detail, role)
                if rank is None or rank.memory is None:
                    continue
                pair, kept = state(rank), rank.memory
                rows.append(
                    (
                        cell.scheme,
                        model.label,
                        str(cell.ranks),
                        role,
                        amount(kept.parameters_bytes),
                        amount(kept.gradients_bytes),
                        amount(kept.optimizer_bytes),
                        UNKNOWN if pair.found is None else amount(pair.found),
                        UNKNOWN if pair.formula is None else amount(pair.formula),
                        _of_formula(pair),
                        UNKNOWN if kept.resident_bytes is None else _gained(kept.resident_bytes),
                        rank.expected.state_formula or "",
                    )
                )
    return make_table(
        "Memory of a rank",
        "Of the rank that keeps the most, between two steps; `process` is what the whole process "
        "has gained since before the model was made, with activations and buffers.",
        "scheme|model|ranks#|role|parameters#|gradients#|optimizer#|together#|formula#|off by#"
        "|process#|formula of memory",
        rows,
    )


def pipelines(models: Sequence[ModelData]) -> Table:
    rows = []
    for model in models:
        for cell in model.cells:
            measured, formula = cell.bubble
            step = pipeline_step(cell.detail)
            if measured is not None and step is not None:
                rows.append(
                    (
                        cell.scheme,
                        model.label,
                        str(cell.ranks),
                        str(len(step.micro_batches)),
                        percent(measured, 1),
                        share(formula, 1),
                        fixed(cell.cell.epoch_s),
                    )
                )
    return make_table(
        "Pipelines",
        "The idle share of the shortest step that was recorded.",
        "schedule|model|ranks#|micro-batches#|bubble#|formula#|epoch (s)#",
        rows,
    )


def scratch(cells: Sequence[ParallelCell]) -> Table:
    """The network from scratch, by hidden size and workers."""
    ordered = sorted(cells, key=lambda cell: (cell.scheme != "alone", cell.scheme))
    return make_table(
        "From scratch",
        "The network without PyTorch; servers are not counted as workers.",
        "scheme|hidden#|workers#|ranks#|epoch (s)#|waiting#|sent a rank and step#|formula#|=|loss#"
        "|accuracy#",
        [scratch_row(cell) for cell in ordered],
    )


def scratch_row(cell: ParallelCell) -> tuple[str, ...]:
    measured = cell.cell
    pairs = [cell.detail.sent(rank) for rank in cell.detail.ranks]
    return (
        cell.scheme,
        cell.hidden,
        str(cell.workers),
        str(cell.ranks),
        fixed(measured.epoch_s),
        share(waiting_share(cell), 0),
        _range([pair.found for pair in pairs]),
        _range([pair.formula for pair in pairs]),
        deviation_mark(pairs),
        UNKNOWN if measured.loss is None else f"{measured.loss.mean:.4f}",
        UNKNOWN if measured.accuracy is None else percent(measured.accuracy.mean, 2),
    )


def left_out(reasons: dict[str, str]) -> Table:
    return make_table(
        "Left out",
        "Asked for, and impossible on this number of ranks or with this model.",
        "run|error",
        list(reasons.items()),
    )


def _fullest(cell: ParallelCell) -> FormulaCheck | None:
    found = [rank for role in cell.detail.roles if (rank := fullest(cell.detail, role))]
    return max((state(rank) for rank in found), key=lambda pair: pair.found or 0, default=None)


def _of_formula(pair: FormulaCheck) -> str:
    """Return the deviation of memory from the formula: +0.2 %."""
    return UNKNOWN if pair.difference is None else signed_percent(pair.difference)


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    low, high = amount(min(known)), amount(max(known))
    return low if low == high else f"{low} {UNKNOWN} {high}"


def _gained(num_bytes: int) -> str:
    return amount(num_bytes) if num_bytes >= 0 else f"{MINUS}{amount(-num_bytes)}"


def _formula(ranks: Sequence[RankDetail], name: str) -> str:
    return str(next((f for rank in ranks if (f := getattr(rank.expected, name))), ""))
