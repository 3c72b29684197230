"""The page of measured collectives: time of a call by path and size, against the others; who is
fastest, at which size, by how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from phalanx.report.cells import Cell, CellPanel, Measure, Row
from phalanx.report.claims import TIMES, compared
from phalanx.report.collectives import (
    PHRASES,
    memory_rows,
    read_collectives,
)
from phalanx.report.content import Column, KeyFigure, words
from phalanx.report.format import counted, duration, grouped, joined, microseconds, size, span
from phalanx.report.marks import Axis, Bars, Lines
from phalanx.report.statistics import Interval, not_told_apart
from phalanx.report.values import ChartSection, Page, Plot, Say, TableSpec, Told, View

FAR = 3.0
"""A path whose median is more than this many times as long is slower, without an interval."""
TOLD_SIZES = (64 * 2**10, 2**20, 16 * 2**20)
HEADLINE_BYTES = 2**20
CALLS = Measure("blocks_s")


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
        return "No comparable results yet"
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
        figures.append(KeyFigure(panel.label, value, meaning, beside))
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
        yield Told(text, label=panel.label)


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
            yield Told(text, label=row["panel"])


def right_results(view: View) -> Iterator[Told]:
    calls = sum(row["calls"] for row in view.data.rows)
    if calls and not any(row["wrong"] for row in view.data.rows):
        yield Told(f"All results of {calls:,} timed calls were right, every element on every rank")


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


# -- The page --------------------------------------------------------------------------------------


SOURCE = "calls events of all ranks: times_s, the slowest rank of each call; traffic, round_trips"
SIZE_WORDS = (
    "datum.value >= 1073741824 ? datum.value / 1073741824 + ' GB' : "
    "datum.value >= 1048576 ? datum.value / 1048576 + ' MB' : "
    "datum.value >= 1024 ? datum.value / 1024 + ' KB' : datum.value + ' B'"
)
TOOLTIP = (
    *("path", "size", "count||,d", "calls||,d", "median_us_low|min (µs)|,.4~r"),
    *("median_us|median (µs)|,.4~r", "median_us_high|p99 (µs)|,.4~r", "algbw|algbw (GB/s)|,.3~f"),
    *("busbw|busbw (GB/s)|,.3~f", f"times_floor|{TIMES} floor|,.3~r"),
    *(f"slower|{TIMES} Phalanx|,.3~r", "wrong||,d"),
)
SIZES = Axis("bytes", "size of a rank's buffer", scale="counts", labels=SIZE_WORDS)
_lines = partial(Lines, x=SIZES, series="path", look="key", tooltip=TOOLTIP, pixels=330)


def sized(row: Row) -> bool:
    return bool(row["bytes"])


def time_plot(name: str) -> Plot:
    return Plot(
        name=name,
        title="Time of a call",
        caption="Median over calls, each timed on its slowest rank; bars run from the minimum to "
        "the 99th percentile, the dashed line is this machine's floor.",
        source=SOURCE,
        frame="results",
        where=sized,
        mark=_lines(
            y=Axis("median_us", "time of a call (µs)", scale="log", form="~r"),
            spread=True,
            ideal="datum.floor_us",
            ideal_name="floor",
        ),
    )


BARRIER_PLOT = Plot(
    name="barrier",
    title="Time of a barrier",
    caption="Median over calls; the time of a call is that of its slowest rank.",
    source=SOURCE,
    frame="results",
    where=lambda row: not row["bytes"],
    mark=Bars(
        by="path",
        x=Axis("median_us", "time of a call (µs)", zero=True),
        colour="--mpi",
        words="words",
        tooltip=TOOLTIP,
    ),
)
SLOWER_PLOT = Plot(
    name="slower",
    title="Against Phalanx",
    caption="Median of each path ÷ median of Phalanx' fastest at the same size in the same run; "
    "above the line, Phalanx is faster.",
    source=SOURCE,
    frame="results",
    where=lambda row: sized(row) and not row["ours"],
    known="slower",
    mark=_lines(
        y=Axis("slower", f"{TIMES} the time of Phalanx", scale="log", form="~r"),
        level=1.0,
    ),
)
BANDWIDTH_PLOT = Plot(
    name="bandwidth",
    title="Bus bandwidth",
    caption="Defined as in nccl-tests, from the median; the dashed line is this machine's floor as "
    "a bandwidth.",
    source=SOURCE,
    frame="results",
    where=sized,
    known="busbw",
    least=2,
    mark=_lines(
        y=Axis("busbw", "bus bandwidth (GB/s)", zero=True),
        ideal="datum.floor_busbw",
        ideal_name="floor",
    ),
)
FLOOR_PLOT = Plot(
    name="floor",
    title="Distance from the floor",
    caption="Median ÷ the minimum time for the necessary bytes and flag round trips on this "
    "machine.",
    source=SOURCE,
    frame="results",
    where=sized,
    known="times_floor",
    least=2,
    mark=_lines(y=Axis("times_floor", f"{TIMES} the floor", scale="log", form="~r"), level=1.0),
)
MEMORY_PLOT = Plot(
    name="memory",
    title="This machine's memory",
    caption="Bytes read and written by all ranks at once, each in private memory; the floor is "
    "computed from copying.",
    source="traffic events of all ranks: traffic_bytes, times_s",
    frame="memory",
    least=4,
    mark=Lines(
        x=Axis("bytes", "memory of a rank", scale="counts", labels=SIZE_WORDS),
        y=Axis("rate", "all ranks together (GB/s)", zero=True),
        series="pass",
        tooltip=("pass", "size", "rate|GB/s|,.1f"),
        pixels=330,
    ),
)


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _style(row: Row, column: str) -> str:
    if column == "wrong" and row["wrong"]:
        return "bold red"
    return "bold" if row["fastest"] else ""


def _us(column: str) -> Any:
    return lambda row: microseconds(row[column] / 1e6)


RESULTS = TableSpec(
    title="",
    frame="results",
    each=True,
    note="Times are those of the slowest rank. Bandwidths are in GB/s (10⁹ bytes/s), from the "
    "median, as in nccl-tests.",
    on_terminal=True,
    style=_style,
    columns=(
        Column("size", lambda row: row["bytes"] or None, size, short="size"),
        Column("count", "count", short="count", only="wide"),
        words("type", "type", short="type", only="wide"),
        words("op", "op", short="op", only="wide"),
        words("path", "path", short="path"),
        Column("min µs", _us("median_us_low"), short="min µs"),
        Column("median µs", _us("median_us"), short="median"),
        Column("p99 µs", _us("median_us_high"), short="p99"),
        Column("algbw", "algbw", "{:.2f}".format, short="algbw"),
        Column("busbw", "busbw", "{:.2f}".format, short="busbw"),
        Column("wrong", "wrong", short="wrong"),
        Column("×floor", "times_floor", _factor, short="×floor"),
    ),
)


def result_rows(view: View) -> list[Row]:
    """Return the cells, each with whether it is the fastest at its size."""
    found = []
    for panel in view.panels:
        best = {n: at_size(panel, n)[0]["path"] for n in sizes(panel)}
        cells = [row for row in view.data.rows if row["panel"] == panel.label]
        found += [{**row, "fastest": best[row["bytes"]] == row["path"]} for row in cells]
    return [{**row, "words": microseconds(row["median_s"])} for row in found]


COLLECTIVES = Page(
    read=read_collectives,
    cell=("path", "bytes"),
    frames={"memory": memory_rows, "results": result_rows},
    headline=headline,
    facts=facts,
    keys=keys,
    claims=(
        Say(wrong_results),
        Say(
            against_rest,
            note="The fastest path of Phalanx and the fastest other path at each size, by medians "
            "in the same run; with several MPI libraries, the fastest.",
        ),
        Say(
            private_tensors,
            note="torch.distributed: on tensors where PyTorch put them, at the size where it gains "
            "least.",
        ),
        Say(
            crossings,
            note="Fastest: the smallest median at each size, if the intervals of its ratios to all "
            f"others exclude 1; a path that takes more than {FAR:g} times as long counts as slower "
            "without an interval.",
        ),
        Say(
            right_results,
            note="Buffers are rewritten before every call, and results are checked after it.",
        ),
    ),
    leading=(time_plot("time"), BARRIER_PLOT),
    sections=(
        ChartSection(
            "Against the others, and against the machine",
            (BARRIER_PLOT, SLOWER_PLOT, BANDWIDTH_PLOT, FLOOR_PLOT, MEMORY_PLOT),
        ),
    ),
    tables=(
        RESULTS,
        TableSpec(
            title="This machine",
            note="Bytes read and written by all ranks together, each in private memory.",
            frame="memory",
            columns=(
                words("run", "mpi"),
                words("pass", "pass"),
                Column("a rank touches", "bytes", size),
                Column("GB/s", "rate", "{:.2f}".format),
            ),
        ),
        TableSpec(
            title="Runs",
            frame="runs",
            columns=(
                *(words("run", "run"), words("status", "status"), words("MPI", "mpi")),
                *(Column("ranks", "ranks"), words("collectives", "collectives")),
                *(Column("calls", "calls", grouped), words("error", "error")),
            ),
        ),
    ),
)
ALGORITHMS = Page(
    read=read_collectives,
    cell=("path", "bytes"),
    frames=COLLECTIVES.frames,
    claims=(Say(crossings),),
    sections=(ChartSection("All-reduce on messages", (time_plot("algorithms"),)),),
    tables=(RESULTS,),
)
"""Part of another page: algorithms that a study has measured."""
