"""The page of a user's own kind of study, read from its file: `[page]` of study.toml.

A file names columns: options of a run, axes of the study, `epoch_s`, `rate`, `communication`,
`accuracy`, `loss`, and every metric that the program logs (its last value): docs/studies.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec

from phalanx.errors import UserError
from phalanx.report.cells import Measure, baseline
from phalanx.report.claims import (
    NOTHING_COMPLETED,
    AgainstBaseline,
    FarthestAccuracy,
    Fastest,
    best_and_rivals,
    key_figures,
    largest_gain,
)
from phalanx.report.content import Column, words
from phalanx.report.folder import read_folder
from phalanx.report.format import percent, seconds
from phalanx.report.marks import Axis, Bars, Lines, Mark
from phalanx.report.measures import RunMeasure
from phalanx.report.training import run_row, training_rows
from phalanx.report.training_frames import FRAMES, RUNS, with_ends
from phalanx.report.training_page import QUANTITIES
from phalanx.report.values import ChartSection, Claim, Page, Plot, StudyRows, TableSpec, View

NAME = "study.toml"
TIMES = ("epoch_s",)
"""Measures that are compared by ratios; all others are compared seed by seed."""
SHARES = ("accuracy", "communication", "validation_accuracy")
KNOWN = {"epoch_s": "time of an epoch (s)", "rate": "samples/s"}
ALL_RUNS = "all runs"


class PlotOfFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[page.charts]]`."""

    title: str
    x: str
    y: str
    series: str = ""
    mark: str = "lines"
    """lines, points, bars, or curves: a line a run over its epochs."""


class ClaimOfFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[page.claims]]`."""

    kind: str
    """best: of all; baseline: each against it; versus: one value of a column against another."""
    measure: str
    column: str = ""
    pair: tuple[str | int | float, str | int | float] = ("", "")


class PageOfFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[page]`."""

    measures: tuple[str, ...] = ("epoch_s", "accuracy")
    higher_is_better: tuple[str, ...] = ("accuracy", "rate")
    panel: str = ""
    """Axis whose values are drawn apart."""
    baseline: dict[str, Any] = {}
    charts: list[PlotOfFile] = []
    claims: list[ClaimOfFile] = []


def has_page(folder: Path) -> bool:
    return (folder / NAME).exists()


def read_page(folder: Path) -> Page:
    """Return the page that the file in a study's folder describes.

    Raises: UserError where it cannot be read, or names what there is not.
    """
    document = tomllib.loads((folder / NAME).read_text())
    try:
        page = msgspec.convert(document.get("page", {}), PageOfFile)
    except msgspec.ValidationError as error:
        raise UserError(f"{NAME}: page: {error}") from error
    axes = [axis for axis in document.get("axes", {}) if axis != "seed"]
    unknown = [name for name in (page.panel, *page.baseline) if name and name not in axes]
    if unknown:
        raise UserError(
            f"{NAME}: page: {unknown[0]} is not an axis of the study: {', '.join(axes)}"
        )
    return make_page(page, axes)


def make_page(page: PageOfFile, axes: Sequence[str]) -> Page:
    """Return the page of a study with these axes."""
    measures = {name: measure_of(name, page) for name in page.measures}
    cells = [axis for axis in axes if axis != page.panel]
    claims = [claim_of(claim, measures, cells) for claim in page.claims]
    first = next(iter(measures.values()))
    base = ", ".join(f"{axis} {value}" for axis, value in page.baseline.items())
    best = AgainstBaseline(measure=first, base=base, value=partial(_value, first), unit=first.noun)
    same = [axis for axis in cells if axis not in page.baseline]
    return Page(
        read=partial(read_rows, page=page, axes=cells),
        cell=cells,
        baseline=baseline(same=same, **page.baseline) if page.baseline else None,
        # The first for the order of the columns, the last for their values.
        quantities=(*measures.values(), *QUANTITIES, *measures.values()),
        frames=FRAMES,
        headline=partial(_best, first)
        if first.paired
        else largest_gain(best, f"Nothing is significantly faster than {base}"),
        keys=key_figures(best) if not first.paired else lambda _: (),
        claims=claims,
        leading=[plot_of(chart, page) for chart in page.charts[:1]],
        sections=[ChartSection("Charts", [plot_of(chart, page) for chart in page.charts])],
        tables=(_table(page, axes), RUNS),
    )


def measure_of(name: str, page: PageOfFile) -> Measure:
    """Return a measure by the name of its column."""
    better: Literal["higher", "lower"] = "higher" if name in page.higher_is_better else "lower"
    noun = KNOWN.get(name, name.replace("_", " "))
    if name in TIMES:
        return Measure(name, noun)
    is_share = name in SHARES
    return Measure(name, noun, how=fmean, paired=True, better=better, is_share=is_share)


def claim_of(claim: ClaimOfFile, measures: Mapping[str, Measure], axes: Sequence[str]) -> Claim:
    """Return the claim that an entry of the file describes.

    Raises: UserError for a measure that the page has not, or a kind that there is not.
    """
    if claim.measure not in measures:
        raise UserError(f"{NAME}: claims: {claim.measure} is none of the measures of the page")
    measure = measures[claim.measure]
    match claim.kind:
        case "best":
            facts = partial(_facts, measure)
            word = "best" if measure.paired else "fastest"
            return Fastest(measure=measure, noun="configurations", word=word, facts=facts)
        case "baseline" if measure.paired:
            return FarthestAccuracy(measure=measure, of_each=True, base="")
        case "baseline":
            return AgainstBaseline(measure=measure, of_each=True)
        case "versus" if claim.column in axes and not measure.paired:
            own, other = claim.pair
            same = [axis for axis in axes if axis != claim.column]
            return AgainstBaseline(
                measure=measure,
                of_each=True,
                only=lambda cell: bool(cell[claim.column] == own),
                to=baseline(same=same, **{claim.column: other}),
            )
        case _:
            raise UserError(
                f"{NAME}: claims: {claim.kind} of {claim.measure}: known are best, baseline, "
                f"and of {', '.join(TIMES)} versus with the column of an axis"
            )


def plot_of(chart: PlotOfFile, page: PageOfFile) -> Plot:
    """Return the chart that an entry of the file describes.

    Raises: UserError for a mark that there is not.
    """
    y = Axis(chart.y, _title(chart.y), form=".1%" if chart.y in SHARES else "")
    x = Axis(chart.x, _title(chart.x), scale="auto")
    series = chart.series or "configuration"
    name = f"{chart.mark}-{chart.x}-{chart.y}".replace("_", "-")
    known: dict[str, Mark] = {
        "lines": Lines(x=x, y=y, series=series, spread=chart.y in page.measures, tooltip=(series,)),
        "points": Lines(x=x, y=y, series=series, spread=True, joined=False, tooltip=(series,)),
        "bars": Bars(by=chart.x, x=Axis(chart.y, _title(chart.y), zero=True),
                     series=chart.series, tooltip=(chart.x, chart.y)),
        "curves": Lines(x=x, y=y, series=series, detail="curve", tooltip=("curve", series)),
    }  # fmt: skip
    if chart.mark not in known:
        raise UserError(f"{NAME}: charts: {chart.mark} is not one of {', '.join(known)}")
    return Plot(
        name=name,
        title=chart.title,
        caption="Means over seeds; for times, medians over epochs and seeds. Bars show minimum and "
        "maximum."
        if chart.mark != "curves"
        else "A mark an epoch.",
        source="epoch, evaluation and metrics events of all ranks",
        frame="epochs" if chart.mark == "curves" else "cells",
        known=chart.y,
        mark=known[chart.mark],
    )


def read_rows(folder: Path, *, page: PageOfFile, axes: Sequence[str]) -> StudyRows:
    """Read the runs of a study, with its axes, their options and their last metrics as columns."""
    measures = read_folder(folder)
    study = measures.study

    def of_run(run: RunMeasure) -> dict[str, Any]:
        own = {**study.common, **study.configurations.get(run.name, {})}
        logged = {n: v for rank in run.ranks.values() for e in rank.metrics
                  for n, v in e.metrics.items()}  # fmt: skip
        known = run_row(run, {run.name: ""})
        phrase = ", ".join(f"{axis} {own.get(axis)}" for axis in axes) or ALL_RUNS
        return {
            **{name: v for name, v in {**own, **logged}.items() if known.get(name) is None},
            **{axis: own.get(axis) for axis in (*axes, page.panel) if axis},
            **dict.fromkeys(("phrase", "configuration"), phrase),
            "set": f"{page.panel} {own.get(page.panel)}" if page.panel else ALL_RUNS,
        }

    return training_rows(measures, of_run, panel="set")


def _best(measure: Measure, view: View) -> str:
    """Return the best cell by a measure that is compared seed by seed, where that is clear."""
    best, _, rivals = best_and_rivals(measure, [c for panel in view.panels for c in panel.cells])
    if best is None:
        return NOTHING_COMPLETED
    if rivals:
        return f"No configuration is clearly the best by {measure.noun}"
    return f"Best {measure.noun}: {best['phrase']}"


def _title(name: str) -> str:
    return KNOWN.get(name, name.replace("_", " "))


def _value(measure: Measure, cell: Any) -> str:
    value = measure.estimate(cell)
    if value is None:
        return ""
    if measure.column in TIMES:
        return seconds(value)
    return percent(value, 2) if measure.column in SHARES else f"{value:.4g}"


def _facts(measure: Measure, cell: Any) -> list[str]:
    return [f"{_value(measure, cell)} {measure.noun}"]


def _table(page: PageOfFile, axes: Sequence[str]) -> TableSpec:
    columns: list[Column[Any]] = [words(axis, axis, short=axis) for axis in axes]
    for name in page.measures:
        form = "percent" if name in SHARES else ".4g"
        value = with_ends(name, ".2%" if form == "percent" else form)
        columns.append(Column(_title(name), value, short=name))
    columns.append(Column("seeds", "seeds", short="seeds"))
    note = "Values with the minimum and maximum over the runs; times are medians over epochs."
    return TableSpec(title="Configurations", note=note, columns=columns, on_terminal=True)
