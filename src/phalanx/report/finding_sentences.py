"""One sentence a question, about the configurations of one workload. Pure.

Each function returns None where the records have no data for its sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from phalanx.report.comparison import Cell, counted, sequential_reference, speed_up
from phalanx.report.format import joined, percent, points, ratio, seconds
from phalanx.report.overlap import mean_overlap
from phalanx.report.schemes import scheme_phrase
from phalanx.report.statistics import Interval, mean_interval

WALL_SHARE = 0.30
NAMED = 3  # number of configurations named in a list


def best_configuration(cells: Sequence[Cell]) -> str | None:
    best = min(cells, key=lambda cell: cell.epoch_s)
    rate = f"{seconds(best.epoch_s)} an epoch, {best.images_per_s:,.0f} images/s"
    if len(cells) == 1:
        return sentence(f"{best.layout.phrase} takes {rate}")
    rivals = undecided(best, cells)
    start = f"{best.layout.phrase} is the fastest of {len(cells)} configurations: {rate}"
    if rivals:
        start = (
            f"which of {len(cells)} configurations is the fastest cannot be told: "
            f"{best.layout.phrase} takes {rate}, and {_named(rivals)} may be as fast"
        )
    return sentence(f"{start}; {_against_one_thread(best, cells)}")


def undecided(best: Cell, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells that are not significantly slower than `best`, the fastest one."""
    others = [cell for cell in cells if cell is not best]
    found = []
    for cell in others:
        interval = speed_up(cell, best, comparisons=len(others))
        if interval is None or interval.verdict(1) != "higher":
            found.append(cell)
    return found


def _named(cells: Sequence[Cell]) -> str:
    names = [cell.layout.phrase for cell in cells[:NAMED]]
    if len(cells) > NAMED:
        names.append(f"{len(cells) - NAMED} more")
    return joined(names)


def _against_one_thread(best: Cell, cells: Sequence[Cell]) -> str:
    reference = sequential_reference(best, cells)
    if reference is None:
        return "there is no sequential run with 1 thread to compare it with"
    if best is reference:
        return "neither threads nor ranks are seen to make the epoch shorter"
    interval = speed_up(reference, best, comparisons=len(cells) - 1)
    text = comparison_text(interval, "the sequential program with 1 thread")
    alone = min((cell for cell in cells if _sequential(cell)), key=lambda cell: cell.epoch_s)
    if best is not alone and alone is not reference:
        other = speed_up(alone, best, comparisons=len(cells) - 1)
        threads = counted(alone.layout.threads, "thread")
        text += f", and {comparison_text(other, 'the best sequential run')} ({threads})"
    return f"it is {text}"


def comparison_text(interval: Interval | None, what: str) -> str:
    """1.93 times (1.81 to 2.05) as fast as `what`, or that it cannot be told."""
    if interval is None:
        return f"not told from {what} by so few epochs"
    match interval.verdict(1):
        case "higher":
            return f"{ratio(interval)} as fast as {what}"
        case "lower":
            return f"slower than {what}, which is {ratio(interval.inverse)} as fast"
        case _:
            return f"not told from {what}: {ratio(interval)} as fast"


def communication_wall(cells: Sequence[Cell]) -> str | None:
    """The first number of ranks that is seen not to shorten the epoch, or to wait too much."""
    groups = {name: _same_threads(group) for name, group in _by_strategy(cells).items()}
    parts = [_wall(name, group) for name, group in groups.items() if len(group) > 1]
    if not parts:
        return None
    return sentence("; ".join(parts))


def oversubscription(cells: Sequence[Cell]) -> str | None:
    """Return the slow-down with more threads than cores."""
    parts = []
    for strategy, group in _by_strategy(cells).items():
        fitting = [cell for cell in group if not cell.oversubscribed]
        crowded = [cell for cell in group if cell.oversubscribed]
        if fitting and crowded:
            best = min(fitting, key=lambda cell: cell.epoch_s)
            parts += [
                f"{scheme_phrase(strategy)} on {cell.layout.span} "
                + _longer(speed_up(cell, best, comparisons=len(crowded)), best.layout.span)
                for cell in crowded
            ]
    if not parts:
        return None
    cores = counted(min(cell.cores for cell in cells), "core")
    return f"More threads than the {cores} of this machine: {'; '.join(parts)}."


def beyond_ideal(cells: Sequence[Cell]) -> str | None:
    """Efficiencies of more than 100 %, which more ranks and threads do not explain."""
    parts = []
    for cell in cells:
        reference = sequential_reference(cell, cells)
        if reference is None or reference is cell or (cell.efficiency or 0.0) <= 1:
            continue
        interval = speed_up(reference, cell, comparisons=len(cells) - 1)
        if interval is None:
            continue
        share, low, high = (
            end / cell.layout.workers for end in (interval.estimate, interval.low, interval.high)
        )
        share_range = f"{percent(low, 0)} to {percent(high, 0)}"
        text = f"{cell.layout.phrase} has {percent(share, 0)} ({share_range})"
        text += (
            ": more than its cores can give; T(1) is slow, or smaller parts fit the caches better"
            if low > 1
            else ", within the noise of 100 %"
        )
        parts.append(text)
    return sentence("; ".join(parts)) if parts else None


def hidden_communication(cells: Sequence[Cell]) -> str | None:
    """Return the share of communication hidden behind backward, and the share that could be."""
    parts = []
    for cell in cells:
        known = mean_overlap([run.overlap for run in cell.runs if run.overlap])
        if known is None or not known.communication_s:
            continue
        parts.append(
            f"{cell.layout.phrase} hides {percent(known.hidden_share, 0)} of "
            f"{1e3 * known.communication_s:.2f} ms a step, of at most {percent(known.ceiling, 0)}"
        )
    return sentence("; ".join(parts)) if parts else None


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
        return f"{start}, and so {_do(len(gaps))} with the same seeds, exactly."
    means = [fmean(gap) for _, gap in gaps]
    between = points(means[0])
    if len(gaps) > 1:
        between = f"between {points(min(means))} and {points(max(means))}"
    text = f"{_others(len(gaps))} from it by {between} percentage points, seed by seed"
    widest, _ = max(gaps, key=lambda item: abs(fmean(item[1])))
    if len(gaps) > 1:
        text += f" (the most: {widest.layout.phrase})"
    intervals = [mean_interval(gap, comparisons=len(gaps)) for _, gap in gaps]
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return f"{start}; {text}; a single seed cannot tell that from chance."
    num_significant = sum(interval.verdict(0) != "cannot be told" for interval in known)
    return f"{start}; {text}; {num_significant} of {len(known)} differences are more than chance."


def _gaps(cell: Cell, reference: Cell) -> list[float]:
    """Differences of accuracy, of the seeds that both have."""
    own, base = cell.accuracy_by_seed, reference.accuracy_by_seed
    return [own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())]


def _do(number: int) -> str:
    return "does the other configuration" if number == 1 else f"do the {number} others"


def mpi_or_gloo(cells: Sequence[Cell]) -> str | None:
    """Compared only where everything else is equal."""
    gloo = {_split(cell): cell for cell in cells if cell.layout.strategy == "gloo"}
    mpi = {_split(cell): cell for cell in cells if cell.layout.strategy == "mpi"}
    both = sorted(set(mpi) & set(gloo))
    parts = [
        f"with {mpi[split].layout.span} "
        + comparison_text(speed_up(gloo[split], mpi[split], comparisons=len(both)), "Gloo")
        for split in both
    ]
    return sentence(f"MPI is {joined(parts)}") if parts else None


def _by_strategy(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Distributed cells by increasing ranks."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.layout.ranks, cell.layout.threads)):
        if not _sequential(cell):
            groups.setdefault(cell.layout.strategy, []).append(cell)
    return groups


def _same_threads(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with the most frequent number of threads a rank."""
    threads = [cell.layout.threads for cell in cells]
    usual = min(threads, key=lambda number: (-threads.count(number), number))
    return [cell for cell in cells if cell.layout.threads == usual]


def _wall(strategy: str, cells: Sequence[Cell]) -> str:
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
            where = f"the wall stands at {cell.layout.span}{crowd}"
            return f"with {scheme_phrase(strategy)} {where} ({', '.join(facts)})"
        if interval is None or interval.verdict(1) != "higher":
            change = "too few epochs" if interval is None else f"{ratio(interval)} as fast"
            unknown.append(f"{cell.layout.span} against {before.layout.span} ({change})")
    if unknown:
        return f"with {scheme_phrase(strategy)} no wall can be told: {joined(unknown)}"
    return f"with {scheme_phrase(strategy)} there is no wall up to {cells[-1].layout.span}"


def _others(number: int) -> str:
    return (
        "the other configuration differs"
        if number == 1
        else (f"the {number} other configurations differ")
    )


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _sequential(cell: Cell) -> bool:
    return cell.layout.strategy == "sequential"


def _split(cell: Cell) -> tuple[int, int]:
    return cell.layout.ranks, cell.layout.threads


def _longer(interval: Interval | None, span: str) -> str:
    """interval: of how many times as long it takes."""
    if interval is None:
        return f"is not told from {span} by so few epochs"
    match interval.verdict(1):
        case "higher":
            return f"takes {ratio(interval)} as long as on {span}"
        case "lower":
            return f"is faster than on {span}, which takes {ratio(interval.inverse)} as long"
        case _:
            return f"is not told from {span}: {ratio(interval)} as long"
