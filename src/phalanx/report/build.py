"""Content of a page, made of its value and the records: figures, claims, tables, and the conditions
of a study: other load, differing environments, what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.text import Text

from phalanx.report.cells import Row
from phalanx.report.claims import as_sentence
from phalanx.report.collectives import holds_benches
from phalanx.report.content import (
    FACTS,
    ChartRow,
    Column,
    Figure,
    KeyFigure,
    Section,
    Table,
    chart_row,
    environments,
    facts_of,
    make_table,
    terminal_table,
)
from phalanx.report.folder import study_of
from phalanx.report.format import UNKNOWN, counted, fixed, joined, percent
from phalanx.report.loading import holds_io
from phalanx.report.measures import RunMeasure
from phalanx.report.page_file import has_page, read_page
from phalanx.report.pages.collectives import COLLECTIVES
from phalanx.report.pages.compression import COMPRESSION
from phalanx.report.pages.io import IO, IO_STUDY
from phalanx.report.pages.large_batch import LARGE_BATCH
from phalanx.report.pages.parallelism import PARALLELISM
from phalanx.report.pages.plan import PLAN, holds_plan
from phalanx.report.pages.scaling import SCALING
from phalanx.report.pages.survival import SURVIVAL
from phalanx.report.statistics import is_spread, spread
from phalanx.report.trace.chrome import TRACE_NAME
from phalanx.report.training import PLANNED
from phalanx.report.values import Page, Plot, StudyRows, TableSpec, View, word

QUIET_SHARE = 0.9
"""Part of the time around a run: a thread on each core that has less of it was not alone."""
SHOWN = 5
CHANGED = "-changed"
"""End of the commit of a tree that was changed since."""
NOT_COMPARED = ("memory", "operating system")
Condition = tuple[str, str]
"""Subject (a run, or nothing), and a sentence."""


def conditions(data: StudyRows) -> list[Condition]:
    """Return the conditions of a study."""
    found: list[Condition] = list(data.notes)
    for of in (planned, not_completed, not_alike, uneven, unseen, traced):
        found += of(data)
    return found


def core_share(run: RunMeasure) -> float | None:
    """Return the part of the cores that was free before or after a run, whichever is less; None if
    not measured."""
    probes = run.run.probes if run.run else []
    return min((probe.core_share for probe in probes), default=None)


def disturbance(runs: Sequence[RunMeasure]) -> str:
    """Return how much other processes took of the machine; empty for a quiet one."""
    known = [share for run in runs if (share := core_share(run)) is not None]
    found = [share for share in known if share < QUIET_SHARE]
    if not found:
        return ""
    return (
        f"Other processes used {percent(1 - fmean(found), 0)} of the CPU during {len(found)} of "
        f"{len(known)} runs: the machine was not quiet."
    )


def uneven(data: StudyRows) -> Iterator[Condition]:
    """Yield the runs whose epochs are far apart, the worst first."""
    completed = [run for run in data.measures if run.status == "completed"]
    found = [(spread(t), run.name, t) for run in completed if is_spread(t := run.timed_s)]
    for factor, name, times in sorted(found, key=lambda item: -item[0])[:SHOWN]:
        times_s = ", ".join(map(fixed, times))
        yield name, f"Epochs of {times_s} s, {factor:.1f}\N{MULTIPLICATION SIGN} apart."
    if len(found) > SHOWN:
        yield "", f"{len(found) - SHOWN} more runs have epochs as far apart."


def not_alike(data: StudyRows) -> Iterator[Condition]:
    """Yield what differs between the environments of runs that are compared."""
    known = [r.run.environment for r in data.measures if r.run and r.status == "completed"]
    facts = [facts_of(environment) for environment in known]
    for name in FACTS.values():
        values = [each[name] for each in facts if name in each]
        counts = {value: values.count(value) for value in dict.fromkeys(values)}
        if len(counts) > 1 and name not in NOT_COMPARED:
            parts = [f"{value} in {count} of {len(values)} runs" for value, count in counts.items()]
            yield "", f"Runs differ in {name}: {joined(parts)}."
    if any((environment.commit or "").endswith(CHANGED) for environment in known):
        yield "", "The source tree had changes since its commit."


LEFT_OUT = (
    "Times, losses and accuracies are the sums of rank 0; results that need the records of all "
    "ranks are left out."
)


def unseen(data: StudyRows) -> Iterator[Condition]:
    """Yield the runs of which some ranks left their records elsewhere, or died."""
    for run in data.measures:
        if run.unseen:
            of = f"Records of {_ranks(run.unseen)} are missing: without a shared"
            yield run.name, f"{of} folder, each node keeps its records locally. {LEFT_OUT}"
        if run.run is not None and (lost := run.run.outcome.lost):
            yield run.name, f"{_ranks(lost, ' died')}; the other ranks continued. {LEFT_OUT}"


def _ranks(ranks: Sequence[int], did: str = "") -> str:
    return f"{counted(len(ranks), 'rank')}{did} ({joined([str(rank) for rank in ranks])})"


def traced(data: StudyRows) -> Iterator[Condition]:
    """Point to the traces of what every rank did when."""
    for whose, is_planned in (("all", False), ("the first", True)):
        runs = [run for run in data.measures if (run.status == PLANNED) is is_planned]
        if names := [run.name for run in runs if run.is_traced]:
            of = f"A trace of {whose} ranks is in {TRACE_NAME} of {joined(names)}"
            yield "", f"{of}: open it in https://ui.perfetto.dev or chrome://tracing."


def planned(data: StudyRows) -> Iterator[Condition]:
    """Yield the runs that were never made."""
    for run in data.measures:
        if run.status == PLANNED:
            steps = max((rank.num_steps for rank in run.ranks.values()), default=0)
            of = f"an epoch of {counted(steps, 'step')}, all figures predicted by phalanx plan"
            yield run.name, f"Planned, not run: {of}."


def not_completed(data: StudyRows) -> Iterator[Condition]:
    """Yield the runs that are in no comparison, and their errors."""
    left = [row for row in data.runs if row["status"] not in ("completed", PLANNED)]
    if not left:
        return
    kinds = [row["status"] for row in left]
    counts = joined([f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)])
    names = joined([row["run"] for row in left])
    total = counted(len(data.runs), "run")
    yield "", f"Not completed: {len(left)} of {total}: {counts} ({names})."
    errors = [(row["run"], str(row["error"])) for row in left if row["error"]]
    yield from errors[:SHOWN]


# -- Content ---------------------------------------------------------------------------------------


WIDE_COLUMNS = 100
SHOWN_CLAIMS = 6


class Content:
    """Content of the page's template and of the summary on the terminal."""

    shown_claims = SHOWN_CLAIMS

    def __init__(self, page: Page, data: StudyRows) -> None:
        self.page, self.data = page, data
        self.title, self.kind = data.study.study, data.study.kind
        self.command, self.started_at = data.study.command, data.study.started_at
        self.views = [View(page, data)]
        """The view of the page, and of each of its parts that has records."""
        for part in page.parts:
            if (own := part.rows(data)) is not None:
                self.views.append(View(part.page, own))
        self.num_panels = len(self.views[0].panels)

    @cached_property
    def headline(self) -> str:
        return self.page.headline(self.views[0])

    @property
    def lead(self) -> str:
        runs, known = self.data.runs, self.data.environments
        done = sum(row["status"] == "completed" for row in runs)
        machines = dict.fromkeys(f"{counted(e.cores, 'core')} of {e.processor}" for e in known)
        completed = [f"{done} of {counted(len(runs), 'run')} completed"] if runs else []
        if imagined := sum(row["status"] == PLANNED for row in runs):
            completed.append(f"{imagined} planned and not run")
        facts = [*completed, *self.page.facts(self.views[0])]
        return f"{', '.join(filter(None, [*facts, joined(list(machines))]))}."

    @property
    def notice(self) -> str:
        """Disturbance of the machine."""
        return self.data.notice or disturbance(self.data.measures)

    @cached_property
    def key_figures(self) -> Sequence[KeyFigure]:
        return self.page.keys(self.views[0])

    @cached_property
    def claims(self) -> list[tuple[str, str]]:
        """Label and sentence; a page shows SHOWN_CLAIMS of them at first."""
        return [
            (told.label, as_sentence(told))
            for view in self.views
            for claim in view.page.claims
            for told in claim.tell(view)
            if told.text
        ]

    @property
    def notes(self) -> list[str]:
        """Rules by which the claims are made."""
        return [claim.note for view in self.views for claim in view.page.claims if claim.note]

    @cached_property
    def conditions(self) -> list[tuple[str, str]]:
        return conditions(self.data)

    @cached_property
    def _leading(self) -> tuple[ChartRow | None, Sequence[Plot]]:
        """The charts of the first screen, and the plots that are drawn there."""
        page, view = self.page, self.views[0]
        if page.leading_title:
            drawn = [figure for plot in page.leading for figure in plot.figures(view)]
            return chart_row(drawn, title=page.leading_title), page.leading
        for plot in page.leading:
            if row := chart_row(plot.figures(view)):
                return row, [plot]
        return None, ()

    @property
    def leading(self) -> ChartRow | None:
        return self._leading[0]

    @cached_property
    def sections(self) -> list[Section]:
        """The sections that have a chart."""
        made = []
        for view in self.views:
            drawn = self._leading[1] if view is self.views[0] else ()
            for section in view.page.sections:
                found = [
                    chart_row(plot.figures(view)) for plot in section.plots if plot not in drawn
                ]
                if rows := list(filter(None, found)):
                    made.append(Section(name=word(section.title), title=section.title, rows=rows))
        return made

    @property
    def figures(self) -> list[Figure]:
        """All charts, from the top."""
        rows = [row for part in self.sections for row in part.rows]
        return [figure for row in [self.leading, *rows] if row for figure in row.figures]

    @property
    def tables(self) -> list[Table]:
        return [t for view in self.views for spec in view.page.tables for t in tables(view, spec)]

    @property
    def environment(self) -> Table:
        return environments(self.data.environments)

    def as_json(self) -> dict[str, Any]:
        """Return the runs, the rows of cells and the sentences, unrounded, for other programs."""
        frames = {"runs": self.data.runs, "rows": self.views[0].frame("cells")}
        return {
            "name": self.title,
            "kind": self.kind,
            "command": self.command,
            **{name: list(map(_plain, rows)) for name, rows in frames.items()},
            "findings": self.claims,
            "conditions": self.conditions,
        }

    def print_summary(self, console: Console) -> None:
        """Print the tables for the terminal, the headline, the first claims and the conditions."""
        for view in self.views:
            for spec in view.page.tables:
                if spec.on_terminal:
                    _print_table(view, spec, console)
        console.print(Text(self.headline, style="bold"))
        more, notice = self.claims[SHOWN_CLAIMS:], self.notice
        left_out = [("", f"{len(more)} more in the report")] if more else []
        notices = [("", notice)] if notice else []
        for label, text in [*self.claims[:SHOWN_CLAIMS], *left_out, *notices, *self.conditions]:
            console.print(f"  {label}: {text}" if label else f"  {text}", markup=False)


def _plain(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def tables(view: View, spec: TableSpec) -> Iterator[Table]:
    """Yield the table of a frame's rows, or one for each panel."""
    for label, rows in filter(itemgetter(1), _groups(view, spec)):
        columns = [column for column in _shown(view, spec, rows) if column.only != "terminal"]
        note = spec.note(rows) if callable(spec.note) else spec.note
        if title := f"{spec.title} {label}".strip():
            yield make_table(title, note, columns, rows)


def _groups(view: View, spec: TableSpec) -> list[tuple[str, Sequence[Row]]]:
    """Return the rows of a table, or of one for each panel with its label, panel after panel, in
    the order that it asks for."""
    rows = [row for row in view.frame(spec.frame) if spec.where is None or spec.where(row)]
    if spec.order is not None:
        order, labels = spec.order, view.labels(rows)
        rows = sorted(rows, key=lambda row: (labels.index(row["panel"]), order(row)))
    if not spec.each:
        return [("", rows)] if rows else []
    return [(name, [row for row in rows if row["panel"] == name]) for name in view.labels(rows)]


def _shown(view: View, spec: TableSpec, rows: Sequence[Row]) -> list[Column[Row]]:
    """Return the columns without those whose values would have to differ or be known."""
    least = {"varied": 2, "known": 1}
    return [
        column
        for column in (spec.columns(view) if callable(spec.columns) else spec.columns)
        if len({column.cell(row) for row in rows} - {UNKNOWN}) >= least.get(column.only, 0)
    ]


def _print_table(view: View, spec: TableSpec, console: Console) -> None:
    groups = _groups(view, spec)
    columns = _shown(view, spec, [row for _, rows in groups for row in rows])
    is_wide = console.width >= WIDE_COLUMNS
    short = [
        replace(column, title=column.short)
        for column in columns
        if column.short is not None and (is_wide or column.only != "wide")
    ]
    for label, rows in filter(itemgetter(1), groups):
        if label:
            console.print(Text(label, style="bold"))
        table = make_table("", "", short, rows)
        console.print(terminal_table(table, style=_style_of(spec, rows)))


def _style_of(spec: TableSpec, rows: Sequence[Row]) -> Callable[[int, str], str] | None:
    """Return the style of a cell by the number of its row and its column."""
    style = spec.style
    return None if style is None else lambda number, title: style(rows[number], title)


# -- The page of each kind of study, found by its records ------------------------------------------


PAGES: Mapping[str, Page] = {
    "scaling": SCALING,
    "compression": COMPRESSION,
    "large-batch": LARGE_BATCH,
    "parallelism": PARALLELISM,
    "io": IO_STUDY,
    "survival": SURVIVAL,
}
"""Pages by the kind of a study; another kind is runs to be compared."""


def page_of(folder: Path) -> Page:
    """Return the page of the records in a folder.

    Raises: UserError when study.json cannot be read.
    """
    if has_page(folder):
        return read_page(folder)
    study = study_of(folder)
    if study is not None:
        return PAGES.get(study.kind, SCALING)
    if holds_io(folder):
        return IO
    if holds_plan(folder):
        return PLAN
    return COLLECTIVES if holds_benches(folder) else SCALING


def content_of(folder: Path) -> Content:
    """Return the content of the page of a study, a run or measured collectives.

    Raises: UserError when the records cannot be read.
    """
    page = page_of(folder)
    return Content(page, page.read(folder))
