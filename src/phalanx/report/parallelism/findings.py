"""Findings of a parallelism study, from the schemes of each model. Pure.

Each function returns None where the records have no data for its sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean

from phalanx.records.divergence import UNBOUNDED, loss_text, mean_loss
from phalanx.report.collectives.comparison import CollectiveResults, is_faster, speed_ratio
from phalanx.report.collectives.findings import crossings, ratio_words
from phalanx.report.collectives.measures import CollectivePoint
from phalanx.report.comparison import Cell, counted, speed_up, undecided
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.disturbance import with_disturbance
from phalanx.report.format import (
    UNKNOWN,
    amount,
    duration,
    first_few,
    joined,
    percent,
    points,
    points_with_span,
    ratio,
    seconds,
    sentence,
    signed_percent,
    size,
)
from phalanx.report.parallelism.chart_rows import deviation_mark, fullest
from phalanx.report.parallelism.rank_details import EQUAL_WITHIN, state
from phalanx.report.parallelism.study_data import (
    ModelData,
    ParallelCell,
    ParallelismStudyData,
    fewest_workers,
    scratch_schemes,
    with_alone,
)
from phalanx.report.schemes import makes_the_same_update, scheme_phrase
from phalanx.report.statistics import Interval, mean_interval
from phalanx.report.study_content import NOTHING_COMPLETED, topics_of_runs

SAME_LOSS = 1e-3
"""Relative; final losses closer than this are called equal (float32, sums in another order)."""
NEAR_FORMULA = 0.01


def findings(data: ParallelismStudyData) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    by_model = [
        make_topic(
            title,
            rule,
            [(model.label, make(model)) for model in data.models for make in functions],
        )
        for title, rule, functions in _QUESTIONS
    ]
    scratch = make_topic(
        "From scratch, up to many workers",
        "The network without PyTorch; more workers than cores share the cores, so this shows "
        "what the scheme itself costs.",
        [
            (scheme, by_workers(with_alone(data.scratch, scheme)))
            for scheme in scratch_schemes(data.scratch)
        ],
    )
    return told(*by_model, scratch, _algorithms(data), *topics_of_runs(data.measures))


def headline(data: ParallelismStudyData) -> str:
    """The largest speed-up whose interval carries it, over all schemes of all models."""
    found = [
        (model, cell)
        for model in data.models
        for cell in model.cells
        if cell.scheme != "sequential" and cell.cell.speed_up is not None
    ]
    if not found:
        runs = sum(run.status == "completed" for run in data.measures.runs)
        return f"{runs} ways of splitting a training, side by side" if runs else NOTHING_COMPLETED
    faster = [
        (interval, model, cell)
        for model, cell in found
        if model.sequential is not None
        if (interval := faster_than(model.sequential, cell, len(found)))
    ]
    text = "no way of splitting the training is seen to beat one process with one thread here"
    if faster:
        interval, model, best = max(faster, key=lambda item: item[0].estimate)
        gain = f"{ratio(interval)} as fast as one process with one thread"
        text = f"{scheme_phrase(best.scheme)} on {best.ranks} ranks trains the {model.label} {gain}"
    return with_disturbance(sentence(text).rstrip("."), data.measures.runs)


def fastest(model: ModelData) -> str | None:
    """Return the fastest scheme at each number of ranks, where significant, and its rivals."""
    parts = []
    for ranks in model.num_ranks:
        cells = sorted(model.on(ranks), key=lambda cell: cell.cell.epoch_s)
        if len(cells) < 2:
            continue
        first, last = cells[0], cells[-1]
        rivals = undecided(first.cell, [cell.cell for cell in cells])
        gain = first.cell.speed_up_interval
        taken = f"{seconds(first.cell.epoch_s)} an epoch"
        taken += "" if gain is None else f", {ratio(gain)} the sequential speed"
        if rivals:
            near = [scheme_phrase(cell.scheme) for cell in cells if cell.cell in rivals]
            text = (
                f"on {ranks} ranks the fastest of {len(cells)} schemes cannot be told: "
                f"{scheme_phrase(first.scheme)} takes {taken}, and {first_few(near)} may be as fast"
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


def faster_than_sequential(model: ModelData) -> str | None:
    """Return the schemes that are faster than the sequential program with one thread."""
    alone = model.sequential
    others = [cell for cell in model.cells if cell is not alone]
    if alone is None or not others:
        return None
    faster = [(i, cell) for cell in others if (i := faster_than(alone, cell, len(others)))]
    cores = alone.cell.cores
    crowded = any(cell.ranks > cores for cell in others)
    beyond = " On this machine more ranks than cores share the cores." if crowded else ""
    base = f"the sequential program with one thread ({seconds(alone.cell.epoch_s)} an epoch)"
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
    whole = _state_bytes(model.sequential) if model.sequential else None
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
        formulas = [f for rank in cell.detail.ranks if (f := rank.expected.state_formula)]
        parts.append(f"{text}, by the formula {formulas[0]}" if formulas else text)
    return sentence("; ".join(parts)) if parts else None


def _state_bytes(cell: ParallelCell) -> float | None:
    full = [rank for role in cell.detail.roles if (rank := fullest(cell.detail, role))]
    return max((found for rank in full if (found := state(rank).found)), default=None)


def memory_and_theory(model: ModelData) -> str | None:
    """Compare measured memory with the formulas."""
    offs = [
        (difference, cell)
        for cell in model.cells
        for rank in cell.detail.ranks
        if (difference := state(rank).difference) is not None
    ]
    if not offs:
        return None
    schemes = {cell.label for _, cell in offs}
    worst, cell = max(offs, key=lambda pair: abs(pair[0]))
    if abs(worst) <= SAME_LOSS:
        return f"Measured memory is that of the formula in all {len(schemes)} configurations."
    far = {c.label for d, c in offs if abs(d) > NEAR_FORMULA}
    return (
        f"Measured memory is within {percent(NEAR_FORMULA, 0)} of the formula in "
        f"{len(schemes - far)} of {len(schemes)} configurations; the farthest is {cell.label}, "
        f"{signed_percent(worst)} of it."
    )


def bytes_and_theory(model: ModelData) -> str | None:
    """Compare counted bytes with the formulas."""
    found = {
        cell.label: [cell.detail.sent(rank) for rank in cell.detail.ranks] for cell in model.cells
    }
    checks = {
        label: known
        for label, pairs in found.items()
        if (known := [pair for pair in pairs if pair.difference is not None])
    }
    if not checks:
        return None
    equal = [label for label, pairs in checks.items() if all(pair.is_equal for pair in pairs)]
    text = (
        f"in {len(equal)} of {len(checks)} configurations every rank has sent the bytes of its "
        "formula"
    )
    others = [f"{label} {deviation_mark(checks[label])}" for label in checks if label not in equal]
    return sentence(f"{text}; not in {joined(others)}" if others else text)


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
    worst, cell = max(offs, key=lambda pair: pair[0])
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
    alone, ranks = model.sequential, max(model.num_ranks, default=0)
    parts = []
    for cell in model.on(ranks) if alone else ():
        pairs = _pairs(cell.cell.loss_by_seed, alone.cell.loss_by_seed) if alone else []
        if alone is None or makes_the_same_update(cell.scheme) or not pairs:
            continue
        mean = mean_loss(sum(own for own, _ in pairs), len(pairs))
        change = "diverged"
        if mean < UNBOUNDED:
            change = signed_percent(fmean(own / base - 1 for own, base in pairs))
        text = f"{scheme_phrase(cell.scheme)} ends with loss {loss_text(mean)} ({change}"
        gap = _gap(cell.cell, alone.cell)
        parts.append(f"{text}, {gap})" if gap else f"{text})")
    start = f"on {ranks} ranks, against the sequential program with the same seeds: "
    return sentence(start + "; ".join(parts)) if parts else None


def _gap(cell: Cell, alone: Cell) -> str | None:
    pairs = _pairs(cell.accuracy_by_seed, alone.accuracy_by_seed)
    if not pairs:
        return None
    interval = mean_interval([own - base for own, base in pairs])
    if interval is None:
        own, base = pairs[0]
        return f"{points(own - base)} points of accuracy with one seed, which chance may be"
    chance = ", which chance may be" if interval.verdict(0) == "cannot be told" else ""
    return f"accuracy {points_with_span(interval)}{chance}"


def by_workers(cells: Sequence[ParallelCell]) -> str | None:
    """Return the number of workers with the shortest epoch, and the time of the most workers."""
    parts = []
    ordered = sorted(cells, key=lambda cell: [int(width) for width in cell.hidden.split()])
    for hidden, group in groupby(ordered, key=lambda cell: cell.hidden):
        of_width = list(group)
        first = fewest_workers(of_width)
        if first is None or len(of_width) < 2:
            continue
        best = min(of_width, key=lambda cell: cell.cell.epoch_s)
        rivals = undecided(best.cell, [cell.cell for cell in of_width])
        most = max(of_width, key=lambda cell: cell.workers)
        text = f"with {hidden} hidden units " + (
            f"the shortest epoch cannot be told: {_workers(best)} take"
            if rivals
            else f"an epoch is shortest on {_workers(best)}:"
        )
        text += f" {seconds(best.cell.epoch_s)}"
        longer = speed_up(most.cell, first.cell)
        if most is not first and longer is not None:
            text += f"; {_workers(most)} take {ratio(longer)} the time of {_workers(first)}"
        parts.append(text)
    return sentence("; ".join(parts)) if parts else None


def _workers(cell: ParallelCell) -> str:
    return "one process" if cell.scheme == "alone" else counted(cell.workers, "worker")


def _algorithms(data: ParallelismStudyData) -> Topic:
    sentences: list[tuple[str, str | None]] = [
        (f"{results.ranks} ranks", make(results))
        for results in data.algorithms
        for make in (crossings, against_naive)
    ]
    sentences += [
        (bench.name, f"{bench.status}: {bench.error or UNKNOWN}")
        for bench in data.benches
        if bench.status != "completed"
    ]
    return make_topic(
        "All-reduce on messages",
        "The algorithm with the smallest median at each size, and from which size on each "
        "beats the naive one: everything to rank 0 and back; where an interval says so.",
        sentences,
    )


def against_naive(results: CollectiveResults) -> str | None:
    """Return the size from which each algorithm is significantly faster than the naive one."""
    naive = {p.num_bytes: p for p in results.points if p.path == "naive"}
    parts = []
    for path in dict.fromkeys(p.path for p in results.points if p.path != "naive"):
        own = {p.num_bytes: p for p in results.points if p.path == path and p.num_bytes in naive}
        if not own:
            continue
        number, last = len(own), max(own)
        label, wins = own[last].label, list(_sizes_won(own, naive))
        gain = speed_ratio(own[last], naive[last], comparisons=number)
        if not wins or gain is None:
            parts.append(f"{label} is not seen to beat it for good up to {size(last)}")
            continue
        where = "at every size" if len(wins) == number else f"from {size(wins[-1])} on"
        parts.append(
            f"{label} beats it {where} ({ratio_words(gain)} as fast at {size(last)}: "
            f"{duration(own[last].median_s)})"
        )
    return sentence(f"against the naive algorithm: {joined(parts)}") if parts else None


def _sizes_won(
    own: Mapping[int, CollectivePoint], naive: Mapping[int, CollectivePoint]
) -> Iterable[int]:
    """Return the largest sizes without a gap at which `own` is significantly faster."""
    for num_bytes in sorted(own, reverse=True):
        if not is_faster(own[num_bytes], naive[num_bytes], comparisons=len(own)):
            return
        yield num_bytes


_QUESTIONS: tuple[tuple[str, str, tuple[Callable[[ModelData], str | None], ...]], ...] = (
    (
        "Which scheme wins",
        "The shortest median epoch among schemes on the same number of ranks, where the interval "
        "of its ratio to every other says so; the first epoch is left out as warm-up where there "
        "are three. T(1) is the sequential program with one thread.",
        (fastest, faster_than_sequential),
    ),
    (
        "Memory",
        "Parameters, gradients and optimizer state that a rank keeps between two steps; "
        "\N{GREEK CAPITAL LETTER PSI} is the number of parameters, p the ranks.",
        (least_memory, memory_and_theory),
    ),
    (
        "Bytes",
        "Counted on every rank as it sends them, per step; equal means within "
        f"{percent(EQUAL_WITHIN, 1)} of the formula.",
        (bytes_and_theory,),
    ),
    (
        "The same mathematics",
        "Splitting changes the time and not the update; asynchronous servers and local steps do "
        "change it. Runs are compared seed by seed: those of one seed start from the same weights.",
        (losses_agree, drift),
    ),
)
