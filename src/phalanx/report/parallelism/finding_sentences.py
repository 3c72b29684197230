"""One sentence a question, about the schemes of one model. Pure.

Each function returns None where the records have no data for its sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from phalanx.records.divergence import UNBOUNDED, loss_text, mean_loss
from phalanx.report.comparison import Cell, speed_up
from phalanx.report.finding_sentences import NAMED, sentence, undecided
from phalanx.report.format import (
    amount,
    joined,
    percent,
    points,
    points_with_span,
    ratio,
    seconds,
)
from phalanx.report.parallelism.chart_rows import deviation_mark, fullest
from phalanx.report.parallelism.pipelines import bubble_of, micro_batches_of
from phalanx.report.parallelism.rank_details import FormulaCheck, state
from phalanx.report.parallelism.study_data import ModelData, ParallelCell, waiting_share
from phalanx.report.schemes import makes_the_same_update, scheme_phrase
from phalanx.report.statistics import Interval, mean_interval

SAME_LOSS = 1e-3
"""Relative; final losses closer than this are called equal (float32, sums in another order)."""


def fastest(model: ModelData) -> str | None:
    """Return the fastest scheme at each number of ranks, where significant, and its rivals."""
    parts = []
    for ranks in model.num_ranks:
        cells = sorted(model.on(ranks), key=_epoch_s)
        if len(cells) < 2:
            continue
        first, last = cells[0], cells[-1]
        whole = [cell.cell for cell in cells]
        rivals = undecided(first.cell, whole)
        taken = f"{seconds(_epoch_s(first))} an epoch{_against_alone(first)}"
        if rivals:
            near = [cell for cell in cells if cell.cell in rivals]
            text = (
                f"on {ranks} ranks the fastest of {len(cells)} schemes cannot be told: "
                f"{scheme_phrase(first.scheme)} takes {taken}, and {_named(near)} may be as fast"
            )
        else:
            text = (
                f"on {ranks} ranks {scheme_phrase(first.scheme)} is the fastest of {len(cells)} "
                f"schemes ({taken})"
            )
        slower = speed_up(last.cell, first.cell, comparisons=len(cells) - 1)
        if slower is not None and slower.verdict(1) == "higher":
            text += f"; {scheme_phrase(last.scheme)} takes {ratio(slower)} as long"
        parts.append(text)
    return sentence("; ".join(parts)) if parts else None


def _named(cells: list[ParallelCell]) -> str:
    names = [scheme_phrase(cell.scheme) for cell in cells[:NAMED]]
    return joined([*names, *([f"{len(cells) - NAMED} more"] if len(cells) > NAMED else [])])


def faster_than_sequential(model: ModelData) -> str | None:
    """Return the schemes that are faster than the sequential program with one thread."""
    alone = model.sequential
    others = [cell for cell in model.cells if cell is not alone]
    if alone is None or not others:
        return None
    faster = [(i, cell) for cell in others if (i := faster_than(alone, cell, len(others)))]
    cores = alone.cell.cores
    beyond = " On this machine more ranks than cores share the cores." if any(
        cell.ranks > cores for cell in others
    ) else ""  # fmt: skip
    base = f"the sequential program with one thread ({seconds(_epoch_s(alone))} an epoch)"
    if not faster:
        return (
            f"None of {len(others)} configurations is seen to be faster than {base} with {cores} "
            f"cores.{beyond}"
        )
    interval, best = max(faster, key=lambda pair: pair[0].estimate)
    return (
        f"{len(faster)} of {len(others)} configurations are seen to be faster than {base}; "
        f"{scheme_phrase(best.scheme)} on {best.ranks} ranks is {ratio(interval)} as fast.{beyond}"
    )


def faster_than(alone: ParallelCell, cell: ParallelCell, comparisons: int) -> Interval | None:
    """Return the interval of the speed-up where it is significantly above 1."""
    interval = speed_up(alone.cell, cell.cell, comparisons=comparisons)
    return interval if interval is not None and interval.verdict(1) == "higher" else None


def least_memory(model: ModelData) -> str | None:
    """Return the scheme with the least training state on its fullest rank."""
    alone = model.sequential
    whole = _state_bytes(alone) if alone else None
    parts = []
    for ranks in model.num_ranks:
        kept = [(k, c) for c in model.on(ranks) if (k := _state_bytes(c)) is not None]
        if len(kept) < 2:
            continue
        least, cell = min(kept, key=lambda pair: pair[0])
        text = (
            f"on {ranks} ranks {scheme_phrase(cell.scheme)} keeps the least, {amount(least)} a rank"
        )
        if whole:
            text += f" against {amount(whole)} of one process ({percent(least / whole, 0)})"
        if formula := _state_formula(cell):
            text += f", by the formula {formula}"
        parts.append(text)
    return sentence("; ".join(parts)) if parts else None


def memory_and_theory(model: ModelData) -> str | None:
    """Compare measured memory with the formulas."""
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


def bytes_and_theory(model: ModelData) -> str | None:
    """Compare counted bytes with the formulas."""
    checks = {cell.label: pairs for cell in model.cells if (pairs := sent_pairs(cell))}
    if not checks:
        return None
    equal = [label for label, pairs in checks.items() if all(pair.is_equal for pair in pairs)]
    text = (
        f"in {len(equal)} of {len(checks)} configurations every rank has sent the bytes of its "
        "formula"
    )
    others = [f"{label} {deviation_mark(checks[label])}" for label in checks if label not in equal]
    if others:
        text += f"; not in {joined(others)}"
    return sentence(text)


def most_and_least_bytes(model: ModelData) -> str | None:
    """Return the schemes that send the most and the least, at each number of ranks."""
    parts = []
    for ranks in model.num_ranks:
        found = [(sent, cell) for cell in model.on(ranks) if (sent := _most_sent(cell)) is not None]
        if len(found) < 2:
            continue
        least, most = min(found, key=_first), max(found, key=_first)
        parts.append(
            f"on {ranks} ranks the busiest rank of {scheme_phrase(least[1].scheme)} sends the "
            f"least, {amount(least[0])} a step, that of {scheme_phrase(most[1].scheme)} the most, "
            f"{amount(most[0])}"
        )
    return sentence("; ".join(parts)) if parts else None


def waits(model: ModelData) -> str | None:
    """Return the schemes that wait the most and the least, at each number of ranks."""
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
            f"({scheme_phrase(least[1].scheme)}) to {percent(most[0], 0)} "
            f"({scheme_phrase(most[1].scheme)})"
        )
    return sentence("; ".join(parts)) if parts else None


def losses_agree(model: ModelData) -> str | None:
    """Schemes that make the sequential program's update must end with its loss, seed by seed."""
    alone = model.sequential
    if alone is None or alone.cell.loss is None:
        return None
    offs = [
        (max(abs(own / base - 1) for own, base in pairs), cell)
        for cell in model.cells
        if cell is not alone and makes_the_same_update(cell.scheme)
        if (pairs := _pairs(cell.cell.loss_by_seed, alone.cell.loss_by_seed))
    ]
    if not offs:
        return None
    worst, cell = max(offs, key=_first)
    inside = sum(off <= SAME_LOSS for off, _ in offs)
    return (
        f"{inside} of {len(offs)} configurations that by theory make the update of the sequential "
        f"program end with its validation loss, {alone.cell.loss.mean:.4f}, to "
        f"{percent(SAME_LOSS, 1)} with every seed; the farthest, {cell.label}, is off by "
        f"{worst * 100:.2g} %."
    )


def _pairs(own: Mapping[int, float], base: Mapping[int, float]) -> list[tuple[float, float]]:
    """Pair the values of the seeds that both have."""
    return [(own[seed], base[seed]) for seed in sorted(own.keys() & base.keys())]


def drift(model: ModelData) -> str | None:
    """Return the loss and accuracy of schemes that do not make the same update, seed by seed."""
    alone = model.sequential
    parts = []
    for cell in model.cells:
        if makes_the_same_update(cell.scheme) or alone is None:
            continue
        pairs = _pairs(cell.cell.loss_by_seed, alone.cell.loss_by_seed)
        if not pairs or cell.ranks != max(model.num_ranks):
            continue
        mean = mean_loss(sum(own for own, _ in pairs), len(pairs))
        change = "diverged"
        if mean < UNBOUNDED:
            change = signed(fmean(own / base - 1 for own, base in pairs))
        text = f"{scheme_phrase(cell.scheme)} ends with loss {loss_text(mean)} ({change}"
        gap = _gap(cell.cell, alone.cell)
        text += f", {gap}" if gap else ""
        parts.append(f"{text})")
    ranks = max(model.num_ranks, default=0)
    start = f"on {ranks} ranks, against the sequential program with the same seeds: "
    return sentence(start + "; ".join(parts)) if parts else None


def staleness(model: ModelData) -> str | None:
    """Return the staleness of the parameters that updates were computed from."""
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


def bubbles(model: ModelData) -> str | None:
    """Idle shares of the pipelines, measured and by formula."""
    parts = []
    for cell in model.cells:
        measured, formula = bubble_of(cell)
        if measured is None:
            continue
        text = f"{cell.label}: {percent(measured, 0)} of its shortest step is idle"
        if formula is not None:
            micro_batches = micro_batches_of(cell)
            text += f", by its formula {percent(formula, 0)} with {micro_batches} micro-batches"
        if cell.ranks > cell.cell.cores:
            text += f" (ranks share {cell.cell.cores} cores)"
        parts.append(text)
    return sentence("; ".join(parts)) if parts else None


def sent_pairs(cell: ParallelCell) -> list[FormulaCheck]:
    """Return counted and expected bytes of every rank that has both."""
    pairs = [cell.detail.sent(rank) for rank in cell.detail.ranks]
    return [pair for pair in pairs if pair.difference is not None]


def signed(share: float) -> str:
    """A relative difference in percent, with its sign: +3.1 %."""
    return f"{share * 100:+.1f} %".replace("-", "\N{MINUS SIGN}")


def _most_sent(cell: ParallelCell) -> float | None:
    """Return the bytes that the busiest rank sends in a step."""
    found = [cell.detail.sent(rank).found for rank in cell.detail.ranks]
    return max((sent for sent in found if sent is not None), default=None)


def _state_bytes(cell: ParallelCell) -> float | None:
    full = [rank for role in cell.detail.roles if (rank := fullest(cell.detail, role))]
    return max((found for rank in full if (found := state(rank).found)), default=None)


def _state_formula(cell: ParallelCell) -> str | None:
    return next((f for rank in cell.detail.ranks if (f := rank.expected.state_formula)), None)


def _epoch_s(cell: ParallelCell) -> float:
    return cell.cell.epoch_s


def _against_alone(cell: ParallelCell) -> str:
    interval = cell.cell.speed_up_interval
    return "" if interval is None else f", {ratio(interval)} the sequential speed"


def _gap(cell: Cell, alone: Cell) -> str | None:
    pairs = _pairs(cell.accuracy_by_seed, alone.accuracy_by_seed)
    if not pairs:
        return None
    interval = mean_interval([own - base for own, base in pairs])
    if interval is None:
        own, base = pairs[0]
        return f"{points(own - base)} points of accuracy with one seed, which chance may be"
    is_significant = interval.verdict(0) != "cannot be told"
    return f"accuracy {points_with_span(interval)}" + (
        "" if is_significant else ", which chance may be"
    )


def _first(pair: tuple[float, ParallelCell]) -> float:
    return pair[0]
