"""Findings of a scaling study: a sentence a question, about the cells of one workload. Pure.

A sentence states its rule where it draws a line, and nothing that the records do not show. Each
function returns None where the records have no data for its sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from phalanx.report.comparison import (
    Cell,
    TrainingWorkload,
    counted,
    main_batch,
    sequential_reference,
    speed_up,
    undecided,
    workload_labels,
)
from phalanx.report.content import Topic, make_topic
from phalanx.report.disturbance import with_disturbance
from phalanx.report.folder import StudyMeasures
from phalanx.report.format import (
    comparison_text,
    first_few,
    joined,
    percent,
    points,
    ratio,
    seconds,
    sentence,
)
from phalanx.report.overlap import mean_overlap
from phalanx.report.schemes import scheme_phrase
from phalanx.report.statistics import mean_interval
from phalanx.report.study_content import NOTHING_COMPLETED, topics_of_runs

WALL_SHARE = 0.30


def findings(measures: StudyMeasures) -> tuple[Topic, ...]:
    """The topics that the records have something to say about."""
    by_workload = scaling_cells(measures.cells)
    labels = workload_labels(by_workload)
    topics = [
        make_topic(
            title, rule, [(labels[s].upper(), make(cells)) for s, cells in by_workload.items()]
        )
        for title, rule, make in _QUESTIONS
    ]
    return tuple(topic for topic in (*topics, *topics_of_runs(measures)) if topic.sentences)


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
        label = labels[cell.workload].upper()
        text = f"{cell.layout.phrase} trains the {label} {ratio(interval)} as fast as one "
        text += "sequential thread"
    elif known:
        text = "nothing tried here is seen to beat the sequential program with one thread"
    else:
        cell = min(cells, key=lambda cell: cell.epoch_s)
        label = labels[cell.workload].upper()
        text = f"an epoch of the {label} takes {seconds(cell.epoch_s)}, {cell.layout.phrase}"
    return with_disturbance(sentence(text).rstrip("."), measures.runs)


def scaling_cells(cells: Sequence[Cell]) -> dict[TrainingWorkload, list[Cell]]:
    """The cells of each workload at the batch size that most of them share."""
    by_workload: dict[TrainingWorkload, list[Cell]] = {}
    for cell in cells:
        by_workload.setdefault(cell.workload, []).append(cell)
    return {
        workload: [cell for cell in group if cell.layout.batch_size == main_batch(group)]
        for workload, group in by_workload.items()
    }


def best_configuration(cells: Sequence[Cell]) -> str | None:
    best = min(cells, key=lambda cell: cell.epoch_s)
    rate = f"{seconds(best.epoch_s)} an epoch, {best.images_per_s:,.0f} images/s"
    if len(cells) == 1:
        return sentence(f"{best.layout.phrase} takes {rate}")
    start = f"{best.layout.phrase} is the fastest of {len(cells)} configurations: {rate}"
    if rivals := undecided(best, cells):
        start = (
            f"which of {len(cells)} configurations is the fastest cannot be told: "
            f"{best.layout.phrase} takes {rate}, and "
            f"{first_few([cell.layout.phrase for cell in rivals])} may be as fast"
        )
    return sentence(f"{start}; {_against_one_thread(best, cells)}")


def _against_one_thread(best: Cell, cells: Sequence[Cell]) -> str:
    reference = sequential_reference(best, cells)
    if reference is None:
        return "there is no sequential run with 1 thread to compare it with"
    if best is reference:
        return "neither threads nor ranks are seen to make the epoch shorter"
    interval = speed_up(reference, best, comparisons=len(cells) - 1)
    text = comparison_text(interval, "the sequential program with 1 thread")
    alone = min((cell for cell in cells if cell.is_sequential), key=lambda cell: cell.epoch_s)
    if best is not alone and alone is not reference:
        other = speed_up(alone, best, comparisons=len(cells) - 1)
        threads = counted(alone.layout.threads, "thread")
        text += f", and {comparison_text(other, 'the best sequential run')} ({threads})"
    return f"it is {text}"


def communication_wall(cells: Sequence[Cell]) -> str | None:
    """The first number of ranks that is seen not to shorten the epoch, or to wait too much."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.layout.ranks, cell.layout.threads)):
        if not cell.is_sequential:
            groups.setdefault(cell.layout.strategy, []).append(cell)
    parts = [
        f"with {scheme_phrase(strategy)} {_wall(by_ranks)}"
        for strategy, group in groups.items()
        if len(by_ranks := _same_threads(group)) > 1
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
        return f"no wall can be told: {joined(unknown)}"
    return f"there is no wall up to {cells[-1].layout.span}"


def hidden_communication(cells: Sequence[Cell]) -> str | None:
    """Return the share of communication hidden behind backward, and the share that could be."""
    parts = []
    for cell in cells:
        known = mean_overlap([run.overlap for run in cell.runs if run.overlap])
        if known is not None and known.communication_s:
            parts.append(
                f"{cell.layout.phrase} hides {percent(known.hidden_share, 0)} of "
                f"{1e3 * known.communication_s:.2f} ms a step, of at most "
                f"{percent(known.ceiling, 0)}"
            )
    return sentence("; ".join(parts)) if parts else None


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


def accuracy_against_sequential(cells: Sequence[Cell]) -> str | None:
    """Seed by seed: runs of one seed start from the same weights and see the same order."""
    reference = sequential_reference(cells[0], cells)
    others = [cell for cell in cells if cell is not reference and cell.accuracy]
    if reference is None or reference.accuracy is None or not others:
        return None
    base = reference.accuracy
    start = (
        f"After {counted(reference.workload.epochs, 'epoch')} the sequential program "
        f"reaches {percent(base.mean, 2)}"
    )
    if base.seeds > 1:
        start += f" ({percent(base.low, 2)} to {percent(base.high, 2)} over {base.seeds} seeds)"
    gaps = [(cell, gap) for cell in others if (gap := _gaps(cell, reference))]
    if not gaps:
        return f"{start}; no other configuration was run with its seeds."
    if all(value == 0 for _, gap in gaps for value in gap):
        do = "does the other configuration" if len(gaps) == 1 else f"do the {len(gaps)} others"
        return f"{start}, and so {do} with the same seeds, exactly."
    text = f"{start}; {_differences(gaps)}"
    intervals = [mean_interval(gap, comparisons=len(gaps)) for _, gap in gaps]
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return f"{text}; a single seed cannot tell that from chance."
    num_significant = sum(interval.verdict(0) != "cannot be told" for interval in known)
    return f"{text}; {num_significant} of {len(known)} differences are more than chance."


def _gaps(cell: Cell, reference: Cell) -> list[float]:
    """Differences of accuracy, of the seeds that both have."""
    own, base = cell.accuracy_by_seed, reference.accuracy_by_seed
    return [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]


def _differences(gaps: Sequence[tuple[Cell, list[float]]]) -> str:
    means = [fmean(gap) for _, gap in gaps]
    if len(gaps) == 1:
        return (
            f"the other configuration differs from it by {points(means[0])} percentage points, "
            "seed by seed"
        )
    widest, _ = max(gaps, key=lambda item: abs(fmean(item[1])))
    return (
        f"the {len(gaps)} other configurations differ from it by between {points(min(means))} and "
        f"{points(max(means))} percentage points, seed by seed (the most: {widest.layout.phrase})"
    )


def mpi_or_gloo(cells: Sequence[Cell]) -> str | None:
    """Compared only where everything else is equal."""
    mpi, gloo = (
        {(c.layout.ranks, c.layout.threads): c for c in cells if c.layout.strategy == strategy}
        for strategy in ("mpi", "gloo")
    )
    both = sorted(set(mpi) & set(gloo))
    parts = [
        f"with {mpi[split].layout.span} "
        + comparison_text(speed_up(gloo[split], mpi[split], comparisons=len(both)), "Gloo")
        for split in both
    ]
    return sentence(f"MPI is {joined(parts)}") if parts else None


_QUESTIONS: tuple[tuple[str, str, Callable[[Sequence[Cell]], str | None]], ...] = (
    (
        "Best configuration",
        "The shortest median epoch, where the interval of its ratio to every other says so; the "
        "first epoch is left out as warm-up where there are three. Intervals are of 95 %, by the "
        "bootstrap over runs, all comparisons of a sentence together.",
        best_configuration,
    ),
    (
        "Communication",
        "The wall is the first number of ranks that is seen to lengthen the epoch, or whose "
        f"communication takes more than {percent(WALL_SHARE, 0)} of the training time.",
        communication_wall,
    ),
    (
        "Hidden communication",
        "Of a mean step, over ranks. What is sent last has nothing left to hide behind: all but "
        "the last bucket can be hidden, as far as the backward pass is long enough.",
        hidden_communication,
    ),
    (
        "Efficiency beyond 100 %",
        "Speed-up \N{DIVISION SIGN} (ranks \N{MULTIPLICATION SIGN} threads of each), where all of "
        "its interval is above 100 %.",
        beyond_ideal,
    ),
    (
        "Accuracy",
        "On the validation data after the last epoch, against the sequential program with the "
        "same seed.",
        accuracy_against_sequential,
    ),
    (
        "MPI against Gloo",
        "Same model, batch, ranks and threads. What an interval that holds 1 does not tell apart "
        "is not called faster.",
        mpi_or_gloo,
    ),
)
