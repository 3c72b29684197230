"""The page of a compression study: below which bandwidth each compressor pays, at what accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.report import compression_rows as rows_of
from phalanx.report.cells import Change, Derived, Gain, Row, baseline
from phalanx.report.claims import TIMES
from phalanx.report.compression_rows import MARGIN, MEMORY, NONE, SENT, STEP, STEPS
from phalanx.report.content import Column, words
from phalanx.report.format import amount, percent, points
from phalanx.report.marks import Axis, Bars, Lines
from phalanx.report.training import reader
from phalanx.report.training_page import ACCURACY
from phalanx.report.training_tables import RUNS, over_seeds
from phalanx.report.values import ChartSection, Page, Plot, Say, TableSpec, View


def columns(view: View) -> list[Column[Row]]:
    """Return the columns of the compressors: one a place."""
    places = ["memory" if p.label == MEMORY else p.label for p in view.panels]
    return [
        words("sent as", "compressor", short="sent as"),
        Column("bytes per step", "sent_bytes", amount),
        Column("fewer", "fewer", "{:.3g}".format, short="fewer"),
        *(
            Column(f"{name} (ms)", f"step {panel.label}", short=name)
            for name, panel in zip(places, view.panels, strict=True)
        ),
        Column("accuracy", "accuracy", lambda value: percent(value, 2), short="accuracy"),
        Column("points", "accuracy_change", points),
        Column("over seeds", over_seeds),
        words("begins to pay", "pays"),
    ]


def _steps_plot(name: str, **more: Any) -> Plot:
    return Plot(
        name=name,
        title="Time of a step",
        caption="Median over the steps of the slowest rank, the first ones left out; in brackets "
        "how many times as fast as without compression.",
        source="step events: all times",
        mark=Bars(
            by="compressor",
            x=Axis(field="step_ms", title="ms of a step", zero=True),
            colour="--mpi",
            words="words",
            tooltip=("compressor", "words|ms of a step"),
        ),
        **more,
    )


SENT_PLOT = Plot(
    name="sent",
    title="Bytes of a step",
    caption="Counted as they were given to MPI; how many times fewer than without compression.",
    source="epoch events: sent_bytes",
    frame="compressors",
    known="sent_mb",
    mark=Bars(
        by="compressor",
        x=Axis(field="sent_mb", title="MB that the busiest rank sends in a step", zero=True),
        colour="--mpi",
        words="words",
        tooltip=("compressor", "words|bytes"),
    ),
)
ACCURACY_PLOT = Plot(
    name="accuracy",
    title="Accuracy after the last epoch",
    caption="Mean over seeds; the bar runs from the worst seed to the best.",
    source="evaluation events: correct, samples of all ranks",
    frame="accuracies",
    mark=Lines(
        x=Axis(field="accuracy", title="final validation accuracy", form=".1%"),
        y=Axis(field="compressor", scale="names"),
        series="compressor",
        joined=False,
        spread=True,
        tooltip=("compressor", "words|mean", "seeds:Q"),
    ),
)
_TOOLTIP = ("compressor", "link|bandwidth", "step_ms|step (ms)|,.4~g", "kind")
_AXES: dict[str, Any] = {
    "x": Axis(field="bits_per_s", title="bandwidth of the link (bit/s)", form=".0s", scale="log"),
    "y": Axis(field="step_ms", title="ms of a step", scale="log"),
    "series": "compressor",
    "tooltip": _TOOLTIP,
}
BANDWIDTH_PLOT = Plot(
    name="by-bandwidth",
    title="Step by bandwidth",
    caption=f"Filled marks are measured; lines are base + slope {TIMES} bytes \N{DIVISION SIGN} "
    "bandwidth, fitted to them; an open mark is where a compressor's line crosses that of "
    "float32: to the left of it compression pays.",
    source="epoch events: sent_bytes; step events: all times",
    frame="bandwidths",
    mark=(
        Lines(where="datum.kind == 'fitted'", marked=False, picks=False, pixels=340, **_AXES),
        Lines(where="datum.kind == 'measured'", joined=False, **_AXES),
        Lines(
            where="datum.kind == 'begins to pay'", joined=False, hollow=True, picks=False, **_AXES
        ),
    ),
)


def _fit_note(rows: Sequence[Row]) -> str:
    fit = rows[0]["fit"]
    return (
        f"step = base + {fit.slope:.3f} {TIMES} bytes \N{DIVISION SIGN} bandwidth; no measured "
        f"step is farther from it than {percent(fit.worst, 1)}."
    )


COMPRESSION = Page(
    read=reader(
        rows_of.of_run,
        counts=lambda row: row.get("step_s") is not None,
        panel="place",
        finish=rows_of.in_order,
    ),
    cell=("compressor",),
    baseline=baseline(compressor=NONE),
    quantities=(
        *(STEP, SENT, ACCURACY, Gain(column="gain", measure=STEP)),
        Change(column="accuracy_change", measure=ACCURACY),
        Derived("step_ms", lambda row: 1e3 * row["step_s"]),
        Derived("words", rows_of.step_words),
    ),
    frames={
        "compressors": rows_of.compressor_rows,
        "accuracies": rows_of.accuracy_rows,
        "nearest": rows_of.nearest_rows,
        "bandwidths": rows_of.bandwidth_rows,
        "fit": rows_of.fit_rows,
    },
    headline=rows_of.headline,
    facts=rows_of.facts,
    keys=rows_of.keys,
    claims=(
        Say(
            rows_of.accuracy_and_price,
            note="Accuracy is compared seed by seed. A compressor holds it when the interval of "
            f"the difference lies above \N{MINUS SIGN}{MARGIN * 100:g} points and not wholly "
            "below 0. It pays below the bandwidth where its fitted line crosses that of float32.",
        ),
        STEPS,
    ),
    leading=(SENT_PLOT, _steps_plot("time", frame="nearest"), ACCURACY_PLOT),
    leading_title="Bytes, time and accuracy",
    sections=(
        ChartSection("Where it begins to pay", (BANDWIDTH_PLOT,)),
        ChartSection("A step in each place", (_steps_plot("step"),)),
    ),
    tables=(
        TableSpec(
            title="Compressors",
            note="Steps are medians, in brackets how many times as fast as without compression. "
            "Accuracy is the mean over seeds, with the worst and the best.",
            frame="compressors",
            columns=columns,
            on_terminal=True,
        ),
        TableSpec(
            title="Fit",
            note=_fit_note,
            frame="fit",
            columns=(
                words("sent as", "compressor"),
                Column("base (ms)", "base_ms", "{:.2f}".format),
                Column("added to float32 (ms)", "added_ms", "{:+.2f}".format),
                Column("bytes per step", "sent_bytes", amount),
            ),
        ),
        RUNS,
    ),
)
