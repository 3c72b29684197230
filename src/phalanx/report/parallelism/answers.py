"""One sentence a question, about the schemes of one model. Pure.

An answer is None where the records have nothing to say.
"""

from __future__ import annotations

from phalanx.report.answers import sentence
from phalanx.report.comparison import Cell
from phalanx.report.parallelism.details import Pair, state
from phalanx.report.parallelism.material import ModelMaterial, ParallelCell, waiting_share
from phalanx.report.parallelism.pipelines import bubble_of, micro_batches_of
from phalanx.report.parallelism.rows import fullest, mark
from phalanx.report.schemes import makes_the_same_update, spoken
from phalanx.report.wording import amount, joined, percent, points, seconds

SAME_LOSS = 1e-3
"""Relative; final losses closer than this are called equal (float32, sums in another order)."""


def fastest(model: ModelMaterial) -> str | None:
    """At each number of ranks who is the fastest, and against whom."""
    parts = []
    for ranks in model.num_ranks:
        cells = sorted(model.on(ranks), key=_epoch_s)
        if len(cells) < 2:
            continue
        first, second, last = cells[0], cells[1], cells[-1]
        text = (
            f"on {ranks} ranks {spoken(first.scheme)} is the fastest of {len(cells)} schemes "
            f"({seconds(_epoch_s(first))} an epoch{_against_alone(first)})"
        )
        text += f", {spoken(second.scheme)} takes {_ratio(second, first)} as long"
        if last is not second:
            text += f" and the slowest, {spoken(last.scheme)}, {_ratio(last, first)}"
        parts.append(text)
    return sentence("; ".join(parts)) if parts else None


def worth_it(model: ModelMaterial) -> str | None:
    """Whether any scheme beats the sequential program here."""
    alone = model.sequential
    others = [cell for cell in model.cells if cell is not alone]
    if alone is None or not others:
        return None
    faster = [cell for cell in others if _epoch_s(cell) < _epoch_s(alone)]
    cores = alone.cell.cores
    beyond = " On this machine more ranks than cores share the cores." if any(
        cell.ranks > cores for cell in others
    ) else ""  # fmt: skip
    if not faster:
        return (
            f"None of {len(others)} configurations is faster than the sequential program "
            f"({seconds(_epoch_s(alone))} an epoch) with {cores} cores.{beyond}"
        )
    best = min(faster, key=_epoch_s)
    return (
        f"{len(faster)} of {len(others)} configurations are faster than the sequential program "
        f"({seconds(_epoch_s(alone))} an epoch); the best is {spoken(best.scheme)} on {best.ranks} "
        f"ranks, {_epoch_s(alone) / _epoch_s(best):.2f} times as fast.{beyond}"
    )


def least_memory(model: ModelMaterial) -> str | None:
    """Who keeps the least for training on its fullest rank, against the sequential program."""
    alone = model.sequential
    whole = _kept(alone) if alone else None
    parts = []
    for ranks in model.num_ranks:
        kept = [(k, c) for c in model.on(ranks) if (k := _kept(c)) is not None]
        if len(kept) < 2:
            continue
        least, cell = min(kept, key=lambda pair: pair[0])
        text = f"on {ranks} ranks {spoken(cell.scheme)} keeps the least, {amount(least)} a rank"
        if whole:
            text += f" against {amount(whole)} of one process ({percent(least / whole, 0)})"
        if formula := _state_formula(cell):
            text += f", by the formula {formula}"
        parts.append(text)
    return sentence("; ".join(parts)) if parts else None


def memory_and_theory(model: ModelMaterial) -> str | None:
    """How far measured memory is from the formulas."""
    offs = []
    for cell in model.cells:
        for rank in cell.detail.ranks:
            difference = state(rank).difference
            if difference is not None:
                offs.append((difference, cell))
    if not offs:
        return None
    schemes = {cell.label for _, cell in offs}
    worst, cell = max(offs, key=lambda pair: abs(pair[0]))
    if abs(worst) <= SAME_LOSS:
        return f"Measured memory is that of the formula in all {len(schemes)} configurations."
    near = {c.label for d, c in offs if abs(d) <= 0.01}
    near -= {c.label for d, c in offs if abs(d) > 0.01}
    return (
        f"Measured memory is within 1 % of the formula in {len(near)} of {len(schemes)} "
        f"configurations; the farthest is {cell.label}, {signed(worst)} of it."
    )


def bytes_and_theory(model: ModelMaterial) -> str | None:
    """Which counts are those of the formulas, and which are not."""
    told = {cell.label: pairs for cell in model.cells if (pairs := sent_pairs(cell))}
    if not told:
        return None
    equal = [label for label, pairs in told.items() if all(pair.is_equal for pair in pairs)]
    text = (
        f"in {len(equal)} of {len(told)} configurations every rank has sent the bytes of its "
        "formula"
    )
    others = [f"{label} {mark(told[label])}" for label in told if label not in equal]
    if others:
        text += f"; not in {joined(others)}"
    return sentence(text)


def most_and_least_bytes(model: ModelMaterial) -> str | None:
    """Who sends the most and the least of all at each number of ranks."""
    parts = []
    for ranks in model.num_ranks:
        found = [(sent, cell) for cell in model.on(ranks) if (sent := _most_sent(cell)) is not None]
        if len(found) < 2:
            continue
        least, most = min(found, key=_first), max(found, key=_first)
        parts.append(
            f"on {ranks} ranks the busiest rank of {spoken(least[1].scheme)} sends the least, "
            f"{amount(least[0])} a step, that of {spoken(most[1].scheme)} the most, "
            f"{amount(most[0])}"
        )
    return sentence("; ".join(parts)) if parts else None


def waits(model: ModelMaterial) -> str | None:
    """Who waits the most and the least."""
    parts = []
    for ranks in model.num_ranks:
        found = [
            (share, cell) for cell in model.on(ranks) if (share := waiting_share(cell)) is not None
        ]
        if len(found) < 2:
            continue
        least, most = min(found, key=_first), max(found, key=_first)
        parts.append(
            f"on {ranks} ranks waiting takes from {percent(least[0], 0)} of the training time "
            f"({spoken(least[1].scheme)}) to {percent(most[0], 0)} ({spoken(most[1].scheme)})"
        )
    return sentence("; ".join(parts)) if parts else None


def losses_agree(model: ModelMaterial) -> str | None:
    """Schemes that make the sequential program's update must end with its loss."""
    alone = model.sequential
    if alone is None or alone.cell.loss is None:
        return None
    base = alone.cell.loss.mean
    offs = [
        (abs(cell.cell.loss.mean / base - 1), cell)
        for cell in model.cells
        if cell is not alone and cell.cell.loss and makes_the_same_update(cell.scheme)
    ]
    if not offs:
        return None
    worst, cell = max(offs, key=_first)
    inside = sum(off <= SAME_LOSS for off, _ in offs)
    return (
        f"{inside} of {len(offs)} configurations that by theory make the update of the sequential "
        f"program end with its validation loss, {base:.4f}, to {percent(SAME_LOSS, 1)}; the "
        f"farthest, {cell.label}, is off by {worst * 100:.2g} %."
    )


def drifting(model: ModelMaterial) -> str | None:
    """What it costs in loss and accuracy not to make the same update."""
    alone = model.sequential
    parts = []
    for cell in model.cells:
        loss = cell.cell.loss
        if makes_the_same_update(cell.scheme) or alone is None or loss is None:
            continue
        if alone.cell.loss is None or cell.ranks != max(model.num_ranks):
            continue
        text = f"{spoken(cell.scheme)} ends with loss {loss.mean:.4f}"
        text += f" ({signed(loss.mean / alone.cell.loss.mean - 1)})"
        gap = _gap(cell.cell, alone.cell)
        text += f" and {gap} percentage points of accuracy" if gap else ""
        parts.append(text)
    ranks = max(model.num_ranks, default=0)
    start = f"on {ranks} ranks, against the sequential program: "
    return sentence(start + "; ".join(parts)) if parts else None


def stale(model: ModelMaterial) -> str | None:
    """How old the parameters were that updates were computed from."""
    parts = []
    for cell in model.cells:
        counts = cell.detail.staleness
        total = sum(counts.values())
        if total and not makes_the_same_update(cell.scheme):
            mean = sum(value * number for value, number in counts.items()) / total
            parts.append(
                f"{cell.label}: {mean:.2f} updates of others came in between in the mean, "
                f"{max(counts)} at most, none in {percent(counts[0] / total, 0)}"
            )
    return sentence("; ".join(parts)) if parts else None


def bubbles(model: ModelMaterial) -> str | None:
    """Idle shares of the pipelines, measured and by formula."""
    parts = []
    for cell in model.cells:
        measured, formula = bubble_of(cell)
        if measured is None:
            continue
        text = f"{cell.label}: {percent(measured, 0)} of a step is idle"
        if formula is not None:
            micro_batches = micro_batches_of(cell)
            text += f", by its formula {percent(formula, 0)} with {micro_batches} micro-batches"
        if cell.ranks > cell.cell.cores:
            text += f" (ranks share {cell.cell.cores} cores)"
        parts.append(text)
    return sentence("; ".join(parts)) if parts else None


def sent_pairs(cell: ParallelCell) -> list[Pair]:
    """Of every rank whose bytes were counted and have a formula."""
    pairs = [cell.detail.sent(rank) for rank in cell.detail.ranks]
    return [pair for pair in pairs if pair.difference is not None]


def signed(share: float) -> str:
    """A relative difference in percent, with its sign: +3.1 %."""
    return f"{share * 100:+.1f} %".replace("-", "\N{MINUS SIGN}")


def _most_sent(cell: ParallelCell) -> float | None:
    """By the busiest rank in a step."""
    found = [cell.detail.sent(rank).found for rank in cell.detail.ranks]
    return max((sent for sent in found if sent is not None), default=None)


def _kept(cell: ParallelCell) -> float | None:
    full = [rank for role in cell.detail.roles if (rank := fullest(cell.detail, role))]
    return max((found for rank in full if (found := state(rank).found)), default=None)


def _state_formula(cell: ParallelCell) -> str | None:
    return next((f for rank in cell.detail.ranks if (f := rank.expected.state_formula)), None)


def _epoch_s(cell: ParallelCell) -> float:
    return cell.cell.epoch_s


def _against_alone(cell: ParallelCell) -> str:
    speed_up = cell.cell.speed_up
    return "" if speed_up is None else f", {speed_up:.2f} times the sequential speed"


def _ratio(later: ParallelCell, first: ParallelCell) -> str:
    return f"{_epoch_s(later) / _epoch_s(first):.2f} times"


def _gap(cell: Cell, alone: Cell) -> str | None:
    if cell.accuracy is None or alone.accuracy is None:
        return None
    return points(cell.accuracy.mean - alone.accuracy.mean)


def _first(pair: tuple[float, ParallelCell]) -> float:
    return pair[0]
