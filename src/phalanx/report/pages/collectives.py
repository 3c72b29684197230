"""The page of measured collectives: time of a call by path and size, against the others."""

from __future__ import annotations

from functools import partial
from typing import Any

from phalanx.report.cells import Row
from phalanx.report.claims import TIMES
from phalanx.report.collectives import claims
from phalanx.report.collectives.claims import FAR
from phalanx.report.collectives.rows import (
    memory_rows,
    read_collectives,
)
from phalanx.report.content import Column, words
from phalanx.report.format import grouped, microseconds, size
from phalanx.report.marks import Axis, Bars, Lines
from phalanx.report.values import ChartSection, Page, Plot, Say, TableSpec, View

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
SIZES = Axis(field="bytes", title="size of a rank's buffer", scale="counts", labels=SIZE_WORDS)
_lines = partial(Lines, x=SIZES, series="path", look="key", tooltip=TOOLTIP, pixels=330)


def sized(row: Row) -> bool:
    return bool(row["bytes"])


def time_plot(name: str) -> Plot:
    return Plot(
        name=name,
        title="Time of a call",
        caption="Median over calls, each as long as its slowest rank; the bar runs from the "
        "shortest to the 99th percentile, the dashed line is the floor of this machine.",
        source=SOURCE,
        frame="results",
        where=sized,
        mark=_lines(
            y=Axis(field="median_us", title="time of a call (µs)", scale="log", form="~r"),
            spread=True,
            ideal="datum.floor_us",
            ideal_name="floor",
        ),
    )


BARRIER_PLOT = Plot(
    name="barrier",
    title="Time of a barrier",
    caption="Median over calls, each as long as its slowest rank.",
    source=SOURCE,
    frame="results",
    where=lambda row: not row["bytes"],
    mark=Bars(
        by="path",
        x=Axis(field="median_us", title="time of a call (µs)", zero=True),
        colour="--mpi",
        words="words",
        tooltip=TOOLTIP,
    ),
)
SLOWER_PLOT = Plot(
    name="slower",
    title="Against Phalanx",
    caption="Median of each path ÷ median of Phalanx' fastest at the same size in the same run; "
    "above the line Phalanx is faster.",
    source=SOURCE,
    frame="results",
    where=lambda row: sized(row) and not row["ours"],
    known="slower",
    mark=_lines(
        y=Axis(field="slower", title=f"{TIMES} the time of Phalanx", scale="log", form="~r"),
        level=1.0,
    ),
)
BANDWIDTH_PLOT = Plot(
    name="bandwidth",
    title="Bus bandwidth",
    caption="As nccl-tests defines it, from the median; the dashed line is the floor of this "
    "machine turned into a bandwidth.",
    source=SOURCE,
    frame="results",
    where=sized,
    known="busbw",
    least=2,
    mark=_lines(
        y=Axis(field="busbw", title="bus bandwidth (GB/s)", zero=True),
        ideal="datum.floor_busbw",
        ideal_name="floor",
    ),
)
FLOOR_PLOT = Plot(
    name="floor",
    title="Distance from the floor",
    caption="Median ÷ the time in which this machine's memory could move the bytes that must "
    "move and its flags go there and back.",
    source=SOURCE,
    frame="results",
    where=sized,
    known="times_floor",
    least=2,
    mark=_lines(
        y=Axis(field="times_floor", title=f"{TIMES} the floor", scale="log", form="~r"), level=1.0
    ),
)
MEMORY_PLOT = Plot(
    name="memory",
    title="This machine's memory",
    caption="Bytes read and written, every rank on memory of its own, all at once; the floor "
    "is computed from copying.",
    source="traffic events of all ranks: traffic_bytes, times_s",
    frame="memory",
    least=4,
    mark=Lines(
        x=Axis(field="bytes", title="memory of a rank", scale="counts", labels=SIZE_WORDS),
        y=Axis(field="rate", title="all ranks together (GB/s)", zero=True),
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
    note="Times are those of the slowest rank. Bandwidths in GB/s of 10⁹ bytes, from the median, "
    "as nccl-tests defines them.",
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
        best = {n: claims.at_size(panel, n)[0]["path"] for n in claims.sizes(panel)}
        cells = [row for row in view.data.rows if row["panel"] == panel.label]
        found += [{**row, "fastest": best[row["bytes"]] == row["path"]} for row in cells]
    return [{**row, "words": microseconds(row["median_s"])} for row in found]


COLLECTIVES = Page(
    read=read_collectives,
    cell=("path", "bytes"),
    frames={"memory": memory_rows, "results": result_rows},
    headline=claims.headline,
    facts=claims.facts,
    keys=claims.keys,
    claims=(
        Say(claims.wrong_results),
        Say(
            claims.against_rest,
            note="The fastest path of Phalanx and the fastest of the others at each size, by their "
            "medians in the same run; of several MPI libraries the hardest to beat.",
        ),
        Say(
            claims.private_tensors,
            note="torch.distributed: on tensors where PyTorch put them, at the size where it gains "
            "least.",
        ),
        Say(
            claims.crossings,
            note="Fastest: the smallest median at each size, where the interval of its ratio to "
            f"every other says so; what takes more than {FAR:g} times as long is slower without "
            "one.",
        ),
        Say(
            claims.right_results,
            note="Buffers are rewritten before every call, results checked after it.",
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
            note="Bytes read and written by all ranks together, each on memory of its own.",
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
    claims=(Say(claims.crossings),),
    sections=(ChartSection("All-reduce on messages", (time_plot("algorithms"),)),),
    tables=(RESULTS,),
)
"""Part of another page: algorithms that a study has measured."""
