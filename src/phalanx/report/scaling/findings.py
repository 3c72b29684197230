"""Findings of a scaling study, about the cells of one workload. Pure.

A sentence states its rule where it draws a line, and nothing that the records do not show. Each
function returns nothing where the records have no data for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from phalanx.report.comparison import (
    Cell,
    TrainingWorkload,
    counted,
    main_batch,
    on_fewest_nodes,
    sequential_reference,
    speed_up,
    undecided,
    workload_labels,
)
from phalanx.report.content import Topic, make_topic, told
from phalanx.report.findings import (
    AccuracyDifference,
    Fastest,
    Finding,
    Speed,
    accuracy_difference,
    headline_text,
)
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import capitals, joined, percent, ratio, seconds, sentence, span
from phalanx.report.scaling.network import RULE, network_cost
from phalanx.report.schemes import scheme_phrase
from phalanx.report.statistics import in_pairs, mean_interval
from phalanx.report.study_content import NOTHING_COMPLETED, topics_of_runs

WALL_SHARE = 0.30
ONE_THREAD = "the sequential program with 1 thread"


def findings(measures: StudyMeasures) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    by_workload = scaling_cells(measures.cells)
    names = workload_labels(by_workload)
    labelled = [(capitals(names[workload]), cells) for workload, cells in by_workload.items()]
    return told(
        make_topic(
            "Best configuration",
            "The shortest median epoch, where the interval of its ratio to every other says so; "
            "the first epoch is left out as warm-up where there are three. Intervals are of 95 %, "
            "by the bootstrap over runs, corrected for the comparisons of a sentence.",
            [(label, best_configuration(cells)) for label, cells in labelled],
        ),
        make_topic(
            "Communication",
            "The wall is the first number of ranks that is seen to lengthen the epoch, or whose "
            f"communication takes more than {percent(WALL_SHARE, 0)} of the training time.",
            [(label, communication_wall(cells)) for label, cells in labelled],
        ),
        make_topic(
            "Network",
            RULE,
            [(label, network_cost(cells)) for label, cells in labelled],
        ),
        make_topic(
            "Efficiency beyond 100 %",
            "Speed-up \N{DIVISION SIGN} (ranks \N{MULTIPLICATION SIGN} threads of each), where "
            "all of its interval is above 100 %.",
            [(label, beyond_ideal(cells)) for label, cells in labelled],
        ),
        make_topic(
            "Accuracy",
            "On the validation data after the last epoch, against the sequential program with the "
            "same seed: the configuration that is farthest from it.",
            [(label, farthest_accuracy(cells)) for label, cells in labelled],
        ),
        make_topic(
            "MPI against Gloo",
            "Same model, batch, ranks and threads. A ratio counts as faster only if its 95 % "
            "interval lies above 1.",
            [(label, mpi_or_gloo(cells)) for label, cells in labelled],
        ),
        *topics_of_runs(measures),
    )


def headline(measures: StudyMeasures) -> str:
    """The largest speed-up whose interval carries it, over all configurations of all workloads."""
    by_workload = scaling_cells(measures.cells)
    labels = workload_labels(by_workload)
    cells = [cell for group in by_workload.values() for cell in group]
    if not cells:
        return NOTHING_COMPLETED
    known = [cell for cell in cells if cell.speed_up is not None]
    faster = []
    for cell in known:
        reference = sequential_reference(cell, cells)
        if reference is not None and reference is not cell:
            interval = speed_up(reference, cell, comparisons=len(known))
            if interval is not None and interval.verdict(1) == "higher":
                faster.append((interval, cell))
    if faster:
        interval, cell = max(faster, key=lambda pair: pair[0].estimate)
        label = capitals(labels[cell.workload])
        factor = f"{interval.estimate:.2f}\N{MULTIPLICATION SIGN}"
        text = f"{cell.layout.phrase} trains the {label} {factor} as fast as one thread "
        text += f"(95 % interval {span(interval)})"
    elif known:
        text = f"no configuration is significantly faster than {ONE_THREAD}"
    else:
        cell = min(cells, key=lambda cell: cell.epoch_s)
        label = capitals(labels[cell.workload])
        text = f"{label}: {seconds(cell.epoch_s)} per epoch, {cell.layout.phrase}"
    return headline_text(text)


def scaling_cells(cells: Sequence[Cell]) -> dict[TrainingWorkload, list[Cell]]:
    """The cells of each workload at the batch size that most of them share."""
    by_workload: dict[TrainingWorkload, list[Cell]] = {}
    for cell in cells:
        by_workload.setdefault(cell.workload, []).append(cell)
    return {
        workload: [cell for cell in group if cell.layout.batch_size == main_batch(group)]
        for workload, group in by_workload.items()
    }


def rate_words(cell: Cell) -> list[str]:
    """Return the rate in words, where the samples were counted."""
    return [] if cell.images_per_s is None else [f"{cell.images_per_s:,.0f} samples/s"]


def best_configuration(cells: Sequence[Cell]) -> list[Finding]:
    """Return the fastest configuration, and its speed against the sequential ones."""
    best = min(cells, key=lambda cell: cell.epoch_s)
    rate = ", ".join([f"{seconds(best.epoch_s)} per epoch", *rate_words(best)])
    if len(cells) == 1:
        return [f"{best.layout.phrase} takes {rate}"]
    rivals = undecided(best, cells)
    found: list[Finding] = [
        Fastest(
            subject=best.layout.phrase,
            rivals=tuple(cell.layout.phrase for cell in rivals),
            n=len(cells),
            noun="configurations",
            facts=rate,
        )
    ]
    reference = sequential_reference(best, cells)
    if reference is None:
        return [*found, "there is no sequential run with 1 thread to compare it with"]
    if best is reference:
        return [*found, "neither threads nor ranks shorten the epoch significantly"]
    alone = min((cell for cell in cells if cell.is_sequential), key=lambda cell: cell.epoch_s)
    against = {ONE_THREAD: reference}
    if alone not in (best, reference):
        threads = counted(alone.layout.threads, "thread")
        against[f"the best sequential run ({threads})"] = alone
    return found + [
        Speed(
            subject="it",
            against=name,
            interval=speed_up(cell, best, comparisons=len(cells) - 1),
            n=len(cells) - 1,
        )
        for name, cell in against.items()
    ]


def communication_wall(cells: Sequence[Cell]) -> str | None:
    """The first number of ranks that is seen not to shorten the epoch, or to wait too much."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.layout.ranks, cell.layout.threads)):
        if not cell.is_sequential:
            groups.setdefault(cell.layout.strategy, []).append(cell)
    parts = [
        f"with {scheme_phrase(strategy)} {_wall(by_ranks)}"
        for strategy, group in groups.items()
        if len(by_ranks := _same_threads(on_fewest_nodes(group))) > 1
    ]
    return sentence("; ".join(parts)) if parts else None


def _same_threads(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with the most frequent number of threads a rank."""
    threads = [cell.layout.threads for cell in cells]
    usual = min(threads, key=lambda number: (-threads.count(number), number))
    return [cell for cell in cells if cell.layout.threads == usual]


def _wall(cells: Sequence[Cell]) -> str:
    unknown = []
    for before, cell in pairwise(cells):
        interval = speed_up(before, cell, comparisons=len(cells) - 1)
        waits = mean_interval([s for r in cell.runs if (s := r.communication_share) is not None])
        is_slower = interval is not None and interval.verdict(1) == "lower"
        if is_slower or (waits is not None and waits.low > WALL_SHARE):
            share = cell.communication_share
            facts = [f"{seconds(cell.epoch_s)}, against {seconds(before.epoch_s)} on "
                     f"{before.layout.span}"]  # fmt: skip
            facts += [] if interval is None else [f"{ratio(interval)} as fast"]
            facts += [] if share is None else [f"{percent(share, 0)} communication"]
            crowd = ", where ranks share cores" if cell.oversubscribed else ""
            return f"the wall stands at {cell.layout.span}{crowd} ({', '.join(facts)})"
        if interval is None or interval.verdict(1) != "higher":
            change = "too few epochs" if interval is None else f"{ratio(interval)} as fast"
            unknown.append(f"{cell.layout.span} against {before.layout.span} ({change})")
    if unknown:
        return f"it is unclear where the wall is: {joined(unknown)}"
    return f"there is no wall up to {cells[-1].layout.span}"


def beyond_ideal(cells: Sequence[Cell]) -> str | None:
    """Efficiencies that are seen to be above 100 %, which more ranks and threads do not explain."""
    parts = []
    for cell in cells:
        reference = sequential_reference(cell, cells)
        if reference is None or reference is cell:
            continue
        interval = speed_up(reference, cell, comparisons=len(cells) - 1)
        if interval is not None and interval.low > cell.layout.workers:
            share, low, high = (
                percent(end / cell.layout.workers, 0)
                for end in (interval.estimate, interval.low, interval.high)
            )
            parts.append(f"{cell.layout.phrase} has {share} ({low} to {high})")
    if not parts:
        return None
    return sentence(
        f"{joined(parts)}: more than its cores can give; T(1) is slow, or smaller parts fit the "
        "caches better"
    )


def farthest_accuracy(cells: Sequence[Cell]) -> AccuracyDifference | None:
    """Return the configuration whose accuracy is farthest from that of the sequential program,
    seed by seed: runs of one seed start from the same weights and see the same order."""
    reference = sequential_reference(cells[0], cells)
    if reference is None or reference.accuracy is None:
        return None
    base = reference.accuracy_by_seed
    gaps = [
        (fmean(own - other for own, other in pairs), cell)
        for cell in cells
        if cell is not reference and (pairs := in_pairs(cell.accuracy_by_seed, base))
    ]
    if not gaps:
        return None
    _, widest = max(gaps, key=lambda pair: abs(pair[0]))
    return accuracy_difference(
        widest.accuracy_by_seed,
        base,
        subject=widest.layout.phrase,
        against=f"the sequential program ({reference.accuracy.text})",
        comparisons=len(gaps),
    )


def mpi_or_gloo(cells: Sequence[Cell]) -> list[Speed]:
    """Compared only where everything else is equal."""
    mpi, gloo = (
        {
            (c.layout.ranks, c.layout.threads, c.layout.nodes): c
            for c in cells
            if c.layout.strategy == strategy
        }
        for strategy in ("mpi", "gloo")
    )
    both = sorted(set(mpi) & set(gloo))
    return [
        Speed(
            subject="MPI",
            against="Gloo",
            interval=speed_up(gloo[split], mpi[split], comparisons=len(both)),
            n=len(both),
            where=f"on {mpi[split].layout.span}",
        )
        for split in both
    ]
