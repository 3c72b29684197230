"""One sentence a question, about the configurations of one subject. Pure.

An answer is None where the records have nothing to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from phalanx.report.comparison import Cell, counted, sequential_reference
from phalanx.report.overlap import mean_overlap
from phalanx.report.schemes import spoken
from phalanx.report.wording import joined, percent, points, seconds

WALL_SHARE = 0.30
SAME_WITHIN = 0.02  # times closer than this are called equal


def best_configuration(cells: Sequence[Cell]) -> str | None:
    best = min(cells, key=lambda cell: cell.epoch_s)
    rate = f"{seconds(best.epoch_s)} an epoch, {best.images_per_s:,.0f} images/s"
    if len(cells) == 1:
        return sentence(f"{best.layout.phrase} takes {rate}")
    start = f"{best.layout.phrase} is the fastest of {len(cells)} configurations: {rate}"
    reference = sequential_reference(best, cells)
    if reference is None:
        return sentence(f"{start}; there is no sequential run with 1 thread to compare it with")
    if best is reference:
        return sentence(f"{start}; neither threads nor ranks made the epoch shorter")
    text = f"{start}, {best.speed_up:.2f} times as fast as the sequential program with 1 thread"
    alone = min((cell for cell in cells if _sequential(cell)), key=lambda cell: cell.epoch_s)
    if best is not alone and alone is not reference:
        gain = alone.epoch_s / best.epoch_s
        text += f" and {gain:.2f} times as fast as the best sequential run"
        text += f" ({counted(alone.layout.threads, 'thread')})"
    return sentence(text)


def communication_wall(cells: Sequence[Cell]) -> str | None:
    """The first number of ranks that does not shorten the epoch, or waits too much."""
    groups = {name: _same_threads(group) for name, group in _by_strategy(cells).items()}
    parts = [_wall(name, group) for name, group in groups.items() if len(group) > 1]
    if not parts:
        return None
    return sentence("; ".join(parts))


def oversubscription(cells: Sequence[Cell]) -> str | None:
    """How much slower it gets when there are more threads than cores."""
    parts = []
    for strategy, group in _by_strategy(cells).items():
        fitting = [cell for cell in group if not cell.oversubscribed]
        crowded = [cell for cell in group if cell.oversubscribed]
        if fitting and crowded:
            best = min(fitting, key=lambda cell: cell.epoch_s)
            parts += [
                f"{spoken(strategy)} on {cell.layout.span} "
                + _longer(cell.epoch_s / best.epoch_s, best.layout.span)
                for cell in crowded
            ]
    if not parts:
        return None
    cores = counted(min(cell.cores for cell in cells), "core")
    return f"More threads than the {cores} of this machine: {'; '.join(parts)}."


def hidden_communication(cells: Sequence[Cell]) -> str | None:
    """What of the communication goes on while backward is computed, and what could."""
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
    reference = sequential_reference(cells[0], cells)
    others = [cell for cell in cells if cell is not reference and cell.accuracy]
    if reference is None or reference.accuracy is None or not others:
        return None
    base = reference.accuracy
    gaps = [(cell.accuracy.mean - base.mean, cell) for cell in others if cell.accuracy]
    low, high = min(g for g, _ in gaps), max(g for g, _ in gaps)
    widest, cell = max(gaps, key=lambda gap: abs(gap[0]))
    start = (
        f"After {counted(reference.subject.epochs, 'epoch')} the sequential program "
        f"reaches {percent(base.mean, 2)}"
    )
    between = f"{points(low)}" if low == high else f"between {points(low)} and {points(high)}"
    text = f"{_others(len(others))} from it by {between} percentage points"
    if widest and len(others) > 1:
        text += f" (the most: {cell.layout.phrase})"
    if base.seeds == 1:
        return f"{start}; {text}; with a single seed no spread can be given."
    inside = sum(1 for _, c in gaps if c.accuracy and base.low <= c.accuracy.mean <= base.high)
    spread = f"{percent(base.low, 2)} to {percent(base.high, 2)} over {base.seeds} seeds"
    return f"{start} ({spread}); {text}; {inside} of {len(others)} means lie within that spread."


def mpi_or_gloo(cells: Sequence[Cell]) -> str | None:
    """Compared only where everything else is equal."""
    gloo = {_split(cell): cell for cell in cells if cell.layout.strategy == "gloo"}
    mpi = {_split(cell): cell for cell in cells if cell.layout.strategy == "mpi"}
    parts = []
    for split in sorted(set(mpi) & set(gloo)):
        gain = gloo[split].epoch_s / mpi[split].epoch_s
        parts.append(f"{_gain(gain)} with {mpi[split].layout.span}")
    return sentence(f"MPI is {joined(parts)}") if parts else None


def _by_strategy(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Distributed cells by increasing ranks."""
    groups: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.layout.ranks, cell.layout.threads)):
        if not _sequential(cell):
            groups.setdefault(cell.layout.strategy, []).append(cell)
    return groups


def _same_threads(cells: Sequence[Cell]) -> list[Cell]:
    """Those with the number of threads a rank that most of them have."""
    threads = [cell.layout.threads for cell in cells]
    usual = min(threads, key=lambda number: (-threads.count(number), number))
    return [cell for cell in cells if cell.layout.threads == usual]


def _wall(strategy: str, cells: Sequence[Cell]) -> str:
    for before, cell in pairwise(cells):
        share = cell.communication_share
        if cell.epoch_s >= before.epoch_s or (share is not None and share > WALL_SHARE):
            earlier = f"{seconds(before.epoch_s)} on {before.layout.span}"
            facts = [f"{seconds(cell.epoch_s)}, against {earlier}"]
            facts += [] if share is None else [f"{percent(share, 0)} communication"]
            crowd = ", where ranks share cores" if cell.oversubscribed else ""
            where = f"the wall stands at {cell.layout.span}{crowd}"
            return f"with {spoken(strategy)} {where} ({', '.join(facts)})"
    return f"with {spoken(strategy)} there is no wall up to {cells[-1].layout.span}"


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


def _longer(ratio: float, span: str) -> str:
    if ratio >= 2:
        return f"takes {ratio:.1f} times as long as on {span}"
    if ratio >= 1:
        return f"takes {percent(ratio - 1, 0)} longer than on {span}"
    return f"takes {percent(1 - ratio, 0)} less time than on {span}"


def _gain(ratio: float) -> str:
    if abs(ratio - 1) <= SAME_WITHIN:
        return "as fast as Gloo"
    return f"{ratio:.2f} times as fast as Gloo"
