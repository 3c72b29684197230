"""Claims about measured collectives: who is fastest, at which size, by how much. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from phalanx.report.cells import Cell, CellPanel, Measure
from phalanx.report.claims import TIMES, compared
from phalanx.report.collectives.rows import PHRASES
from phalanx.report.content import KeyFigure
from phalanx.report.format import counted, duration, joined, size, span
from phalanx.report.statistics import Interval, not_told_apart
from phalanx.report.values import Told, View

FAR = 3.0
"""A path whose median is more than this many times as long is slower, without an interval."""
TOLD_SIZES = (64 * 2**10, 2**20, 16 * 2**20)
HEADLINE_BYTES = 2**20
CALLS = Measure(column="blocks_s")


def at_size(panel: CellPanel, num_bytes: int) -> list[Cell]:
    """Return the paths at a size, the fastest first."""
    found = [cell for cell in panel.cells if cell["bytes"] == num_bytes]
    return sorted(found, key=lambda cell: float(cell["median_s"]))


def sizes(panel: CellPanel) -> list[int]:
    return sorted({cell["bytes"] for cell in panel.cells})


Pair = tuple[Cell, Cell]
"""The fastest of our paths and the fastest of the others, at one size of one run."""


def pairs(panel: CellPanel) -> list[Pair]:
    """Return the pairs of a panel by increasing size, where both sides were measured."""
    made = []
    for num_bytes in sizes(panel):
        cells = at_size(panel, num_bytes)
        ours = next((cell for cell in cells if cell["ours"]), None)
        theirs = next((cell for cell in cells if not cell["ours"]), None)
        if ours is not None and theirs is not None:
            made.append((ours, theirs))
    return made


def gain(pair: Pair) -> float:
    ours, theirs = pair
    ratio: float = theirs["median_s"] / ours["median_s"]
    return ratio


def told_pair(pair: Pair, comparisons: int, name: str = "") -> Told:
    """Return the comparison of a pair. name: of ours, where it is not its path's."""
    ours, theirs = pair
    at = f" at {ours['size']}" if ours["bytes"] else ""
    names = f"{name or ours['path']}{at}", theirs["path"]
    return compared(CALLS, ours, theirs, names, comparisons, "calls")


def against_rest(view: View) -> Iterator[Told]:
    """Yield the smallest lead of Phalanx over any library: at the smallest and the largest size,
    and at those of TOLD_SIZES."""
    groups: dict[object, list[CellPanel]] = {}
    for panel in view.panels:
        groups.setdefault(panel.cells[0]["group"], []).append(panel)
    for group in groups.values():
        found = [pair for panel in group for pair in pairs(panel)]
        known = sorted({ours["bytes"] for ours, _ in found})
        shown = [n for n in known if n in TOLD_SIZES or n in (known[0], known[-1])]
        hardest = [min((p for p in found if p[0]["bytes"] == n), key=gain) for n in shown]
        first = group[0].cells[0]
        phrase = PHRASES[first["collective"]].capitalize()
        label = f"{phrase}, {first['ranks']} ranks, {len(group)} libraries"
        for pair in hardest:
            shown_label = group[0].label if len(group) == 1 else label
            yield replace(told_pair(pair, len(hardest)), label=shown_label)


def near_a_megabyte(panel: CellPanel) -> Pair | None:
    """Return the pair at 1 MB, or at the size nearest to it."""
    return min(pairs(panel), key=lambda p: abs(p[0]["bytes"] - HEADLINE_BYTES), default=None)


def headline(view: View) -> str:
    """Return ours against the best of all others, of the first collective with one: of several MPI
    libraries the hardest to beat."""
    found = [pair for panel in view.panels if (pair := near_a_megabyte(panel))]
    if found:
        same = [pair for pair in found if pair[0]["collective"] == found[0][0]["collective"]]
        ours, theirs = min(same, key=gain)
        names, interval = (ours["path"], theirs["path"]), CALLS.ratio(ours, theirs, len(same))
        if interval is None or interval.verdict(1) == "unclear":
            return f"{_what(ours)}: {names[0]} and {names[1]} do not differ"
        is_faster = interval.verdict(1) == "higher"
        factor = f"{(interval if is_faster else interval.inverse).estimate:.2f}{TIMES}"
        how = f"{factor} {'faster' if is_faster else 'slower'} than"
        return f"{_what(ours)}: {names[0]} {how} {names[1]}"
    if not view.panels:
        return "Nothing to compare was measured yet"
    panel = view.panels[0]
    fastest_of = at_size(panel, sizes(panel)[-1])[0]
    return f"{_what(fastest_of)}: {duration(fastest_of['median_s'])} with {fastest_of['path']}"


def _what(cell: Cell) -> str:
    """Return the collective and its size: 1 MB all-reduce."""
    phrase = PHRASES[cell["collective"]]
    return f"{cell['size']} {phrase}" if cell["bytes"] else phrase.capitalize()


def keys(view: View) -> list[KeyFigure]:
    """Return ours against the best of the others, at 1 MB or near it; the time if that is unclear.

    Intervals are corrected for all of them together.
    """
    found = [(panel, pair) for panel in view.panels if (pair := near_a_megabyte(panel))]
    figures = []
    for panel, (ours, theirs) in found:
        at = f" at {ours['size']}" if ours["bytes"] else ""
        own_s, other_s = duration(ours["median_s"]), duration(theirs["median_s"])
        interval = CALLS.ratio(ours, theirs, len(found))
        value, meaning = own_s, f"{ours['path']}{at}"
        beside = f"{other_s} with {theirs['path']}, unclear"
        if interval is not None and interval.verdict(1) != "unclear":
            value, meaning = f"{interval.estimate:.2f}{TIMES}", f"as fast as {theirs['path']}{at}"
            beside = f"{span(interval)}; {own_s} against {other_s}"
        figures.append(KeyFigure(label=panel.label, value=value, meaning=meaning, beside=beside))
    return figures


def fastest(cells: Sequence[Cell]) -> Cell | None:
    """Return the fastest path, where it is seen to be faster than every other that takes at most
    FAR times as long. cells: the paths at one size, the fastest first."""
    first, *others = cells
    near = [cell for cell in others if cell["median_s"] <= FAR * first["median_s"]]

    def lead(cell: Cell) -> Interval | None:
        return CALLS.ratio(first, cell, len(others))

    return None if not_told_apart(near, lead) else first


def crossings(view: View) -> Iterator[Told]:
    """Yield the fastest path for each range of sizes."""
    for panel in view.panels:
        if sizes(panel) == [0] or len({cell["path"] for cell in panel.cells}) < 2:
            continue
        best = {n: fastest(at_size(panel, n)) for n in sizes(panel)}
        winners = {n: cell["path"] if cell else "" for n, cell in best.items()}
        ranges = [(path, list(own)) for path, own in groupby(winners, key=lambda n: winners[n])]
        known = [f"{path} {_between(own)}" for path, own in ranges if path]
        unknown = [_between(own) for path, own in ranges if not path]
        if not known:
            text = "no path is clearly the fastest"
        elif len(ranges) == 1:
            text = f"fastest at every size: {ranges[0][0]}"
        else:
            rest = f"; {joined(unknown)} no path is clearly the fastest" if unknown else ""
            text = f"fastest: {joined(known)}{rest}"
        yield Told(text=text, label=panel.label)


def _between(own: Sequence[int]) -> str:
    low, high = size(own[0]), size(own[-1])
    return f"at {low}" if len(own) == 1 else f"from {low} to {high}"


def private_tensors(view: View) -> Iterator[Told]:
    """Yield torch.distributed on our backend against Gloo, tensors where PyTorch put them, at the
    size where it gains least."""
    for panel in view.panels:
        ours = {c["bytes"]: c for c in panel.cells if c["key"] == "torch"}
        gloo = {c["bytes"]: c for c in panel.cells if c["key"] == "gloo"}
        both = [(ours[n], gloo[n]) for n in ours if n in gloo]
        if both:
            own, other = min(both, key=gain)
            told = told_pair((own, other), len(both), "torch.distributed, backend mpi")
            yield replace(told, label=panel.label)


def wrong_results(view: View) -> Iterator[Told]:
    for row in view.data.rows:
        if row["wrong"]:
            text = f"{row['path']} at {row['size']}: {row['wrong']:,} wrong elements"
            yield Told(text=text, label=row["panel"])


def right_results(view: View) -> Iterator[Told]:
    calls = sum(row["calls"] for row in view.data.rows)
    if calls and not any(row["wrong"] for row in view.data.rows):
        yield Told(
            text=f"All results of {calls:,} timed calls were right, every element on every rank"
        )


def facts(view: View) -> list[str]:
    """Return collectives, types, ranks, libraries and calls."""
    known = [row for row in view.data.runs if row["ranks"]]
    texts = [
        joined(list(dict.fromkeys(PHRASES[row["collective"]] for row in view.data.rows))),
        joined(list(dict.fromkeys(row["types"] for row in known))),
        joined(list(dict.fromkeys(counted(row["ranks"], "rank") for row in known))),
        joined(list(dict.fromkeys(row["mpi"] for row in known))),
    ]
    return [*texts, f"{sum(row['calls'] for row in view.data.rows):,} timed calls"]
