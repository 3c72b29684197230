"""Findings of a parallelism study, from the schemes of each model. Pure.

Each function returns nothing where the records have no data for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from phalanx.records.divergence import UNBOUNDED, loss_text, mean_loss
from phalanx.report.collectives.findings import crossings
from phalanx.report.comparison import counted, speed_up, undecided
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.findings import (
    Agreement,
    FastestFinding,
    Finding,
    Speed,
    accuracy_difference,
    headline_text,
)
from phalanx.report.format import UNKNOWN, amount, percent, ratio, seconds, signed_percent
from phalanx.report.parallelism.chart_rows import Line, deviation_mark
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
from phalanx.report.statistics import Interval, in_pairs
from phalanx.report.study_content import NOTHING_COMPLETED, topics_of_runs

SAME_LOSS = 1e-3
"""Relative; final losses closer than this are called equal (float32, sums in another order)."""
NEAR_FORMULA = 0.01
ALONE = "one process with one thread"


def findings(data: ParallelismStudyData) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    models = data.models
    return told(
        make_topic(
            "Which scheme wins",
            "The shortest median epoch among schemes on the same number of ranks, where the "
            "interval of its ratio to every other says so; the first epoch is left out as warm-up "
            "where there are three. T(1) is the sequential program with one thread.",
            [(model.label, fastest(model)) for model in models],
        ),
        make_topic(
            "Memory and bytes",
            "Parameters, gradients and optimizer state that a rank keeps between two steps; bytes "
            "as every rank sends them, per step. Equal to the formula: bytes within "
            f"{percent(EQUAL_WITHIN, 1)}, memory within {percent(NEAR_FORMULA, 0)}. "
            "\N{GREEK CAPITAL LETTER PSI} is the number of parameters, p the ranks.",
            [
                (
                    model.label,
                    [*least_memory(model), *memory_and_theory(model), *bytes_and_theory(model)],
                )
                for model in models
            ],
        ),
        make_topic(
            "The same mathematics",
            "Splitting changes the time and not the update; asynchronous servers and local steps "
            "do change it. Runs are compared seed by seed: those of one seed start from the same "
            "weights.",
            [(model.label, [*losses_agree(model), *drift(model)]) for model in models],
        ),
        make_topic(
            "From scratch, up to many workers",
            "The network without PyTorch; more workers than cores share the cores, so this shows "
            "what the scheme itself costs.",
            [(s, by_workers(with_alone(data.scratch, s))) for s in scratch_schemes(data.scratch)],
        ),
        _algorithms(data),
        *topics_of_runs(data.measures),
    )


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
    text = "no way of splitting the training is significantly faster than one thread"
    if faster:
        interval, model, best = max(faster, key=lambda item: item[0].estimate)
        text = (
            f"{scheme_phrase(best.scheme)} on {best.ranks} ranks trains the {model.label} "
            f"{ratio(interval)} as fast as {ALONE}"
        )
    return headline_text(text)


def faster_than(alone: ParallelCell, cell: ParallelCell, comparisons: int) -> Interval | None:
    """Return the interval of the speed-up where it is significantly above 1."""
    interval = speed_up(alone.cell, cell.cell, comparisons=comparisons)
    return interval if interval is not None and interval.verdict(1) == "higher" else None


def fastest(model: ModelData) -> list[Finding]:
    """Return the fastest scheme at each number of ranks, where significant, or its rivals."""
    found: list[Finding] = []
    for ranks in model.num_ranks:
        cells = sorted(model.on(ranks), key=lambda cell: cell.cell.epoch_s)
        if len(cells) < 2:
            continue
        first = cells[0].cell
        rivals = undecided(first, [cell.cell for cell in cells])
        gain = first.speed_up_interval
        facts = f"{seconds(first.epoch_s)} per epoch"
        found.append(
            FastestFinding(
                subject=scheme_phrase(first.layout.strategy),
                rivals=tuple(scheme_phrase(cell.layout.strategy) for cell in rivals),
                n=len(cells),
                noun="schemes",
                facts=facts + (f", {ratio(gain)} the sequential speed" if gain else ""),
                where=f"on {ranks} ranks",
            )
        )
    return found


def least_memory(model: ModelData) -> list[Finding]:
    """Return the scheme with the least training state on its fullest rank, on the most ranks."""
    whole = _state_bytes(model.sequential) if model.sequential else None
    ranks = max(model.num_ranks, default=0)
    kept = [(k, c) for c in model.on(ranks) if (k := _state_bytes(c)) is not None]
    if len(kept) < 2:
        return []
    least, cell = min(kept, key=lambda pair: pair[0])
    text = f"on {ranks} ranks {scheme_phrase(cell.scheme)} keeps the least, {amount(least)} a rank"
    if whole:
        text += f" against {amount(whole)} of one process ({percent(least / whole, 0)})"
    formulas = [f for rank in cell.detail.ranks if (f := rank.expected.state_formula)]
    return [f"{text}, by the formula {formulas[0]}" if formulas else text]


def _state_bytes(cell: ParallelCell) -> float | None:
    kept = Line(cell=cell).state
    return kept.found if kept else None


def memory_and_theory(model: ModelData) -> list[Finding]:
    """Compare measured memory with the formulas."""
    worst: dict[str, float] = {}
    for cell in model.cells:
        offs = [off for rank in cell.detail.ranks if (off := state(rank).difference) is not None]
        if offs:
            worst[cell.label] = max(offs, key=abs)
    far = {label: off for label, off in worst.items() if abs(off) > NEAR_FORMULA}
    return _agreement(
        "keep the memory of their formula",
        list(worst),
        [f"{label} ({signed_percent(off)})" for label, off in far.items()],
    )


def bytes_and_theory(model: ModelData) -> list[Finding]:
    """Compare counted bytes with the formulas."""
    checks = {
        cell.label: known
        for cell in model.cells
        if (
            known := [
                pair
                for rank in cell.detail.ranks
                if (pair := cell.detail.sent(rank)).difference is not None
            ]
        )
    }
    others = [label for label, pairs in checks.items() if not all(p.is_equal for p in pairs)]
    return _agreement(
        "send the bytes of their formula on every rank",
        list(checks),
        [f"{label} {deviation_mark(checks[label])}" for label in others],
    )


def _agreement(holds: str, labels: Sequence[str], exceptions: Sequence[str]) -> list[Finding]:
    if not labels:
        return []
    return [
        Agreement(
            num=len(labels) - len(exceptions),
            n=len(labels),
            noun="configurations",
            holds=holds,
            exceptions=tuple(exceptions),
        )
    ]


def losses_agree(model: ModelData) -> list[Finding]:
    """Schemes that make the sequential program's update must end with its loss, seed by seed."""
    alone = model.sequential
    if alone is None or alone.cell.loss is None:
        return []
    offs = {
        cell.label: max(abs(own / base - 1) for own, base in pairs)
        for cell in model.cells
        if cell is not alone and makes_the_same_update(cell.scheme)
        if (pairs := in_pairs(cell.cell.loss_by_seed, alone.cell.loss_by_seed))
    }
    return _agreement(
        "that by theory make the update of the sequential program end with its validation loss, "
        f"{alone.cell.loss.mean:.4f}, to {percent(SAME_LOSS, 1)} with every seed",
        list(offs),
        [f"{label} ({off * 100:.2g} %)" for label, off in offs.items() if off > SAME_LOSS],
    )


def drift(model: ModelData) -> list[Finding]:
    """Return the accuracy of schemes that do not make the same update, on the most ranks, seed by
    seed."""
    alone, ranks = model.sequential, max(model.num_ranks, default=0)
    found: list[Finding] = []
    for cell in model.on(ranks) if alone else ():
        losses = in_pairs(cell.cell.loss_by_seed, alone.cell.loss_by_seed) if alone else []
        if alone is None or makes_the_same_update(cell.scheme) or not losses:
            continue
        mean = mean_loss(sum(own for own, _ in losses), len(losses))
        change = "diverged"
        if mean < UNBOUNDED:
            change = signed_percent(fmean(own / base - 1 for own, base in losses))
        found.append(
            accuracy_difference(
                cell.cell.accuracy_by_seed,
                alone.cell.accuracy_by_seed,
                subject=f"{scheme_phrase(cell.scheme)} on {ranks} ranks",
                against="the sequential program",
                facts=f"loss {loss_text(mean)}, {change}",
            )
        )
    return found


def by_workers(cells: Sequence[ParallelCell]) -> list[Finding]:
    """Return the number of workers with the shortest epoch, and the time of the most workers."""
    found: list[Finding] = []
    ordered = sorted(cells, key=lambda cell: [int(width) for width in cell.hidden.split()])
    for hidden, group in groupby(ordered, key=lambda cell: cell.hidden):
        of_width = list(group)
        first = fewest_workers(of_width)
        if first is None or len(of_width) < 2:
            continue
        best = min(of_width, key=lambda cell: cell.cell.epoch_s)
        most = max(of_width, key=lambda cell: cell.workers)
        rivals = undecided(best.cell, [cell.cell for cell in of_width])
        where = f"with {hidden} hidden units"
        found.append(
            FastestFinding(
                subject=_workers(best),
                rivals=tuple(_workers(cell) for cell in of_width if cell.cell in rivals),
                n=len(of_width),
                noun="numbers of workers",
                facts=f"{seconds(best.cell.epoch_s)} per epoch",
                where=where,
            )
        )
        if most is not first:
            found.append(
                Speed(
                    subject=f"training on {_workers(most)}",
                    against=f"training on {_workers(first)}",
                    interval=speed_up(first.cell, most.cell),
                    where=where,
                )
            )
    return found


def _workers(cell: ParallelCell) -> str:
    return "one process" if cell.scheme == "alone" else counted(cell.workers, "worker")


def _algorithms(data: ParallelismStudyData) -> Topic:
    return make_topic(
        "All-reduce on messages",
        "The algorithm with the smallest median at each size, where an interval says so; the naive "
        "one sends everything to rank 0 and back.",
        [
            *((f"{results.ranks} ranks", crossings(results)) for results in data.algorithms),
            *(
                (bench.name, f"{bench.status}: {bench.error or UNKNOWN}")
                for bench in data.benches
                if bench.status != "completed"
            ),
        ],
    )
