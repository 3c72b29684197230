"""The pages of loading, of one measurement and of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any

from phalanx.report import loading
from phalanx.report.cells import Row, best_by
from phalanx.report.content import Column, words
from phalanx.report.format import amount, duration, fixed, grouped, one_decimal, three_digits
from phalanx.report.loading import (
    QUANTITIES,
    Ways,
    busy,
    flat,
    on_fewest_ranks,
    own,
    paced,
    read_io_rows,
    times_read,
    times_torch,
    ways_of,
    with_compute,
)
from phalanx.report.marks import Axis, Bars, Lines
from phalanx.report.values import ChartSection, Page, Plot, Rows, Say, TableSpec, View

SOURCE = "io_epoch events of all ranks: samples, bytes, total_s, waits_s"
SHORT = {"threads": "thr.", "processes": "proc."}
LOADER_WORDS = {"torch-batched": "torch, batched"}
TOOLTIP = (
    *("format", "loader", "way|readers", "depth:Q|batches ahead", "ranks:Q", "cache"),
    *("compute_ms|compute per step (ms)|,.4~r", "samples_per_s|samples/s|,.4~r"),
    *("mb_per_s|MB/s|,.4~r", "first_ms|first batch (ms)|,.3~r", "stalls:Q"),
    "utilisation|busy|.1%",
)
OF_PACE = ("first_ms", "stalls", "utilisation", "utilisation_low", "utilisation_high")
BY_BYTES = itemgetter("mb_per_s")
BUSY = Axis("utilisation", "busy: compute ÷ total time", form="%", domain=(0.0, 1.0))
FLAT_OUT = Axis("mb_per_s", "MB/s flat out", zero=True)
_plot = partial(Plot, source=SOURCE)
_bars = partial(Bars, by="format", tooltip=TOOLTIP)
THROUGHPUT_PLOT = _plot(
    name="throughput",
    title="What comes through",
    caption="Bytes of samples per second without compute; each loader in its fastest "
    "configuration, median over epochs. Lines run from the slowest epoch to the fastest.",
    frame="fastest",
    mark=_bars(x=FLAT_OUT, series="loader", spread=True),
)
UTILISATION_PLOT = _plot(
    name="utilisation",
    title="How busy the accelerator is",
    caption="Median over epochs, each format in its best configuration; the dashed line is the "
    "profile's floor, thin lines run from the worst epoch to the best.",
    frame="busiest",
    mark=_bars(x=BUSY, spread=True, level="floor"),
)
FIRST_PLOT = _plot(
    name="first",
    title="Time to the first batch",
    caption="From the start of the epoch; later batches are loaded during compute. Each format in "
    "the configuration that keeps the accelerator busiest.",
    frame="busiest",
    mark=_bars(x=Axis("first_ms", "until the first batch is ready (ms)", zero=True)),
)
BUSY_PLOT = _plot(
    name="busy",
    title="How busy an accelerator is, from fast to slow ones",
    caption="Each format in its best configuration at each compute time; on the left the "
    "accelerator waits for storage, on the right storage for it. Dashed: the floor.",
    frame="paced",
    mark=Lines(
        x=Axis("compute_ms", "compute of a step (ms)", scale="log", form=".3~r"),
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
            x=Axis(field, title, scale="ordinal"),
            y=FLAT_OUT,
            series="format",
            tooltip=TOOLTIP,
            pixels=300,
        ),
    )


READERS_PLOT = _over("readers", "readers", "readers; one line per format, at its fastest depth.")
DEPTH_PLOT = _over(
    "depth",
    "batches ahead",
    "batches read ahead; one line per format, at its fastest number of readers.",
)
RANKS_PLOT = _over(
    "ranks",
    "ranks",
    "ranks, each on separate data; one line per format, in its fastest configuration.",
)


def frame(choose: Callable[[Ways], Iterable[Row]]) -> Callable[[View], list[Row]]:
    """Return the rows of some ways of each panel."""
    return lambda view: [way for ways in view.by_panel.values() for way in choose(ways)]


def busiest_by_compute(ways: Ways) -> list[Row]:
    """Return the best utilisation of each format at each compute time."""
    found = own(with_compute(ways))
    best = best_by(found, ("format_option", "compute_s"), busy)
    return [best[key] for key in sorted(best)]


def fastest_over(column: str) -> Callable[[Ways], list[Row]]:
    """Return the fastest of each format at each value; nothing where there is one value."""

    def choose(ways: Ways) -> list[Row]:
        known = [w for w in own(flat(ways)) if column != "depth" or w["readers"]]
        best = best_by(known, ("format_option", column), BY_BYTES)
        several = len({value for _, value in best}) > 1
        return [best[key] for key in sorted(best)] if several else []

    return choose


def flat_rows(view: View) -> list[Row]:
    """Return the ways flat out, with what they are at the compute time of the profile."""
    every = ways_of(view)
    at_pace = {(way["run"], way["_way"]): way for way in paced(every)}
    rows: list[Row] = []
    for way in flat(every):
        peers = [other for other in every if other["run"] == way["run"]]
        with_pace = at_pace.get((way["run"], way["_way"]))
        times = {"times_read": times_read(peers, way), "times_torch": times_torch(peers, way)}
        busyness = {name: with_pace[name] if with_pace else None for name in OF_PACE}
        rows.append({**way, "panel": way["run"], **busyness, **times})
    return rows


def written_rows(view: View) -> list[Row]:
    """Return a row a format that was written for a run."""
    found = [
        (r["run"], one) for r in view.data.runs if r["_bench"] for one in r["_bench"].generated
    ]
    names = {"format": "format", "files": "num_files", "bytes": "bytes", "write_s": "write_s"}
    return [
        {"run": run, **{name: getattr(one, field) for name, field in names.items()}}
        for run, one in found
    ]


FRAMES = {
    "fastest": frame(lambda ways: best_by(flat(ways), ("format", "loader"), BY_BYTES).values()),
    "busiest": frame(
        lambda ways: best_by(own(paced(on_fewest_ranks(ways))), ("format",), busy).values()
    ),
    "paced": frame(busiest_by_compute),
    **{f"by {column}": frame(fastest_over(column)) for column in ("readers", "depth", "ranks")},
    "flat": flat_rows,
    "written": written_rows,
}


def _range(low: str, high: str, form: Any) -> Any:
    def text(row: Row) -> str | None:
        return None if row[low] is None else "–".join(form(row[end]) for end in (low, high))

    return text


def _ways_note(rows: Rows) -> str:
    setting = rows[0]["_bench"].setting
    return (
        "samples/s and MB/s of 10⁶ bytes flat out. Time to the first batch, stalls (waits over "
        f"{duration(setting.stall_s)}, an epoch of {setting.steps} steps) and busy (compute ÷ "
        f"total time): with {duration(setting.compute_s)} of compute per step. Medians over "
        f"{setting.runs} epochs. ×read: times the time of a plain read of the same files; ×torch: "
        "times the samples/s of DataLoader with as many readers and batches ahead."
    )


def _style(row: Row, column: str) -> str:
    known = row["utilisation"]
    is_low = known is not None and known < row["floor"]
    return "red" if column == "busy" and is_low else ""


def _readers(row: Row) -> str | None:
    cell = row["_way"]
    return f"{cell.readers} {SHORT[cell.kind]}" if cell.readers else None


def _loader(row: Row) -> str:
    name: str = row["_way"].loader
    return LOADER_WORDS.get(name, name)


WAYS = TableSpec(
    title="Ways of loading,",
    each=True,
    note=_ways_note,
    frame="flat",
    on_terminal=True,
    style=_style,
    columns=(
        words("format", "format_option", short="format"),
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
        note="Random bytes, the same every time. Time to write and flush them to the disk.",
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
    loading.claim(loading.fastest_format),
    note="Fastest format: without compute between batches, each in its best configuration, if it "
    "leads every other in each round by more than 5 %.",
)
_page = partial(
    Page,
    read=read_io_rows,
    cell=("_way", "compute_s"),
    quantities=QUANTITIES,
    frames=FRAMES,
    tables=TABLES,
)
IO = _page(
    headline=loading.headline,
    facts=loading.facts,
    keys=loading.keys,
    claims=(
        Say(
            loading.claim(loading.utilisation),
            note="Busy: compute ÷ total time of an epoch, median over epochs; each format in its "
            "best configuration.",
        ),
        Say(
            loading.claim(loading.against_torch),
            note="Against PyTorch's DataLoader: in the fastest format that both read, each in its "
            "best configuration, on the same shards and in turn; its workers are persistent and "
            "start before the clock. The range is over rounds.",
        ),
        Say(loading.claim(loading.bound)),
        FASTEST,
    ),
    leading=(UTILISATION_PLOT,),
    sections=(
        ChartSection("Loading", (THROUGHPUT_PLOT, FIRST_PLOT)),
        ChartSection("Readers, depth, ranks", (READERS_PLOT, DEPTH_PLOT, RANKS_PLOT)),
    ),
)
IO_STUDY = _page(
    headline=loading.study_headline,
    keys=loading.balances,
    claims=(
        Say(
            loading.claim(loading.choice),
            note="Recommended: the least that keeps the accelerator busy: fewest readers, then "
            "fewest batches ahead, then the fastest format; if none does, the fastest.",
        ),
        Say(
            loading.claim(loading.bounds),
            note="A configuration is compute-bound if a step computes longer than a batch takes to "
            "load; measured: the shortest compute time that reached the floor.",
        ),
        FASTEST,
    ),
    leading=(BUSY_PLOT,),
    sections=(ChartSection("What comes through", (THROUGHPUT_PLOT, READERS_PLOT, DEPTH_PLOT)),),
)
