"""The pages of loading, of one measurement and of a study."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from phalanx.report.build import claims_of, print_summary, views_of
from phalanx.report.cells import Row
from phalanx.report.content import Column, words
from phalanx.report.format import amount, duration, fixed, grouped, one_decimal, three_digits
from phalanx.report.io import rows as rows_of
from phalanx.report.io.comparison import floor_of
from phalanx.report.io.measures import IoMeasure, IoPoint
from phalanx.report.marks import Axis, Bars, Lines
from phalanx.report.values import ChartSection, Page, Plot, Rows, Say, TableSpec

SOURCE = "io_epoch events of all ranks: samples, bytes, total_s, waits_s"
SHORT = {"threads": "thr.", "processes": "proc."}
LOADER_WORDS = {"torch-batched": "torch, batched"}
TOOLTIP = (
    *("format", "loader", "way|readers", "depth:Q|batches ahead", "ranks:Q", "cache"),
    *("compute_ms|compute per step (ms)|,.4~r", "samples_per_s|samples/s|,.4~r"),
    *("mb_per_s|MB/s|,.4~r", "first_ms|first batch (ms)|,.3~r", "stalls:Q"),
    "utilisation|busy|.1%",
)
BUSY = Axis(field="utilisation", title="busy: compute ÷ total time", form="%", domain=(0.0, 1.0))
FLAT_OUT = Axis(field="mb_per_s", title="MB/s flat out", zero=True)
_plot = partial(Plot, source=SOURCE)
_bars = partial(Bars, by="format", tooltip=TOOLTIP)
THROUGHPUT_PLOT = _plot(
    name="throughput",
    title="What comes through",
    caption="Bytes of samples per second when nothing is computed; of each loader its fastest "
    "way, median over epochs. The line runs from the slowest epoch to the fastest.",
    frame="fastest",
    mark=_bars(x=FLAT_OUT, series="loader", spread=True),
)
UTILISATION_PLOT = _plot(
    name="utilisation",
    title="How busy the accelerator is",
    caption="Median over epochs, of each format its best way; the dashed line is the floor of "
    "the profile, the thin one runs from the worst epoch to the best.",
    frame="busiest",
    mark=_bars(x=BUSY, spread=True, level="floor"),
)
FIRST_PLOT = _plot(
    name="first",
    title="Time to the first batch",
    caption="From the start of the epoch; later ones are loaded while it computes. Of each "
    "format the way that keeps the accelerator busiest.",
    frame="busiest",
    mark=_bars(x=Axis(field="first_ms", title="until the first batch is there (ms)", zero=True)),
)
BUSY_PLOT = _plot(
    name="busy",
    title="How busy an accelerator is, from fast to slow ones",
    caption="Of each format the best way at each compute time; left the storage holds the "
    "accelerator up, right it waits for it. The dashed line is the floor.",
    frame="paced",
    mark=Lines(
        x=Axis(field="compute_ms", title="compute of a step (ms)", scale="log", form=".3~r"),
        y=BUSY,
        series="format",
        level="floor",
        tooltip=TOOLTIP,
        pixels=330,
    ),
)


def _over(field: str, title: str, caption: str) -> Plot:
    return _plot(
        name=field,
        title=f"More {title}",
        caption=f"Bytes per second flat out by the number of {caption}",
        frame=f"by {field}",
        mark=Lines(
            x=Axis(field=field, title=title, scale="ordinal"),
            y=FLAT_OUT,
            series="format",
            tooltip=TOOLTIP,
            pixels=300,
        ),
    )


READERS_PLOT = _over("readers", "readers", "readers; one line per format, its fastest depth.")
DEPTH_PLOT = _over(
    "depth",
    "batches ahead",
    "batches that may wait; one line per format, its fastest number of readers.",
)
RANKS_PLOT = _over(
    "ranks", "ranks", "ranks, each on data of its own; one line per format, its fastest way."
)
FRAMES = {
    "fastest": rows_of.frame(rows_of.fastest_of_loaders),
    "busiest": rows_of.frame(rows_of.busiest_of_formats),
    "paced": rows_of.frame(rows_of.busiest_by_compute),
    "by readers": rows_of.frame(rows_of.fastest_over(lambda p: p.cell.readers)),
    "by depth": rows_of.frame(
        rows_of.fastest_over(lambda p: p.cell.depth if p.cell.readers else None)
    ),
    "by ranks": rows_of.frame(rows_of.fastest_over(lambda p: p.cell.ranks)),
    "flat": rows_of.flat_rows,
    "written": rows_of.written_rows,
}


def _cell(name: str) -> Any:
    return lambda row: getattr(row["_point"].cell, name)


def _range(low: str, high: str, form: Any) -> Any:
    def text(row: Row) -> str | None:
        return None if row[low] is None else "–".join(form(row[end]) for end in (low, high))

    return text


def _ways_note(rows: Rows) -> str:
    setting = rows[0]["_measure"].bench.setting
    return (
        "samples/s and MB/s of 10⁶ bytes flat out. Time to the first batch, stalls (waits over "
        f"{duration(setting.stall_s)}, an epoch of {setting.steps} steps) and busy (compute ÷ "
        f"total time): with {duration(setting.compute_s)} of compute per step. Medians over "
        f"{setting.runs} epochs. ×read: times the time of a plain read of the same files; ×torch: "
        "times the samples/s of DataLoader with as many readers and batches ahead."
    )


def _style(row: Row, column: str) -> str:
    known = row["utilisation"]
    is_low = known is not None and known < floor_of(row["_measure"])
    return "red" if column == "busy" and is_low else ""


def _readers(row: Row) -> str | None:
    cell = row["_point"].cell
    return f"{cell.readers} {SHORT[cell.kind]}" if cell.readers else None


def _loader(row: Row) -> str:
    name: str = row["_point"].cell.loader
    return LOADER_WORDS.get(name, name)


WAYS = TableSpec(
    title="Ways of loading,",
    each=True,
    note=_ways_note,
    frame="flat",
    on_terminal=True,
    style=_style,
    columns=(
        words("format", _cell("format"), short="format"),
        words("cache", "cache", short="cache"),
        words("loader", _loader, short="loader"),
        words("readers", _readers, short="readers"),
        Column("ahead", lambda row: row["depth"] or None, short="ahead", only="wide"),
        Column("ranks", "ranks", short="ranks", only="varied"),
        Column("samples/s", "samples_per_s", three_digits, short="samples/s"),
        Column("MB/s", "mb_per_s", three_digits, short="MB/s"),
        Column(
            "MB/s range",
            _range("mb_per_s_low", "mb_per_s_high", three_digits),
            short="range",
            only="wide",
        ),
        Column("×read", "times_read", three_digits, short="×read"),
        Column("×torch", "times_torch", three_digits, short="×torch"),
        Column("first", lambda r: (ms := r["first_ms"]) and duration(ms / 1e3), short="first"),
        Column("stalls", "stalls", "{:g}".format, short="stalls", only="wide"),
        Column("busy", "utilisation", one_decimal, short="busy"),
        Column(
            "busy range",
            _range("utilisation_low", "utilisation_high", lambda end: f"{100 * end:.1f}"),
        ),
    ),
)
TABLES = (
    WAYS,
    TableSpec(
        title="Data",
        note="Random bytes, the same every time. Time to write them and bring them to the disk.",
        frame="written",
        columns=(
            *(words("run", "run"), words("format", "format")),
            *(Column("files", "files", grouped), Column("bytes", "bytes", amount)),
            Column("written (s)", "write_s", fixed),
        ),
    ),
    TableSpec(
        title="Runs",
        frame="runs",
        columns=(
            *(words("run", "run"), words("status", "status")),
            *(words("file system", "file_system"), words("device", "device")),
            *(Column("free before", "free_bytes", amount), words("error", "error")),
        ),
    ),
)
FASTEST = Say(
    rows_of.claim(rows_of.fastest_format),
    note="Fastest format: flat out, nothing is computed between batches. The best way of each, "
    "where it is ahead of every other in each round, by more than 5 %.",
)
IO = Page(
    read=rows_of.read_bench,
    frames=FRAMES,
    headline=rows_of.headline,
    facts=rows_of.facts,
    keys=rows_of.keys,
    claims=(
        Say(
            rows_of.claim(rows_of.utilisation),
            note="Busy: compute ÷ total time of an epoch, median over epochs; the best way of each "
            "format.",
        ),
        Say(
            rows_of.claim(rows_of.against_torch),
            note="Against PyTorch's DataLoader: in the fastest format that both read, each at its "
            "best, on the same shards and in turn; its workers stay and were started before the "
            "clock. The range is that of the rounds.",
        ),
        Say(rows_of.claim(rows_of.bound)),
        FASTEST,
    ),
    leading=(UTILISATION_PLOT,),
    sections=(
        ChartSection("Loading", (THROUGHPUT_PLOT, FIRST_PLOT)),
        ChartSection("Readers, depth, ranks", (READERS_PLOT, DEPTH_PLOT, RANKS_PLOT)),
    ),
    tables=TABLES,
)
IO_STUDY = Page(
    read=rows_of.read_study,
    frames=FRAMES,
    headline=rows_of.study_headline,
    keys=rows_of.balances,
    claims=(
        Say(
            rows_of.claim(rows_of.choice),
            note="Which to take: the least that keeps the accelerator busy: fewest readers, then "
            "fewest batches ahead, then the fastest format; where nothing does, the fastest.",
        ),
        Say(
            rows_of.claim(rows_of.bounds),
            note="A way is compute-bound where a step computes longer than a batch takes flat out; "
            "measured: the shortest compute time at which the floor was reached.",
        ),
        FASTEST,
    ),
    leading=(BUSY_PLOT,),
    sections=(ChartSection("What comes through", (THROUGHPUT_PLOT, READERS_PLOT, DEPTH_PLOT)),),
    tables=TABLES,
)


def show(measure: IoMeasure, console: Console) -> None:
    """Print the table of all ways and the claims of a measurement."""
    print_summary(IO, rows_of.rows_of_bench(measure, Path()), console)


def as_json(measure: IoMeasure) -> dict[str, Any]:
    """Return the content of the table, unrounded, for other programs."""
    found = claims_of(views_of(IO, rows_of.rows_of_bench(measure, Path())))
    return {
        "bench": measure.name,
        "status": measure.status,
        "scaled": measure.bench.setting.scaled if measure.bench else [],
        "utilisation_floor": floor_of(measure),
        "rows": [_as_json(point) for point in measure.points],
        "left_out": measure.bench.left_out if measure.bench else {},
        "findings": [f"{label}: {text}" for label, text in found],
    }


def _as_json(point: IoPoint) -> dict[str, Any]:
    cell = point.cell
    return {
        "format": cell.format,
        "loader": cell.loader,
        "kind": cell.kind,
        "readers": cell.readers,
        "depth": cell.depth,
        "cache": cell.cache,
        "ranks": cell.ranks,
        "compute_s": point.compute_s,
        "samples_per_s": point.samples_per_s,
        "bytes_per_s": point.bytes_per_s,
        "first_batch_s": point.first_s,
        "stalls": point.stalls,
        "utilisation": point.utilisation,
        "resident_before": point.resident,
        "wrong": point.wrong,
        "epoch_s": [epoch.total_s for epoch in point.epochs],
    }
