"""Views of pages over runs that are made in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from pathlib import Path

import msgspec

from phalanx.records.schema import Study
from phalanx.report.build import Content, content_of, tables
from phalanx.report.content import Table
from phalanx.report.folder import StudyMeasures
from phalanx.report.measures import RunMeasure, measure_run
from phalanx.report.pages.scaling import SCALING
from phalanx.report.rank_measures import measure_rank
from phalanx.report.training import training_rows
from phalanx.report.values import Claim, Page, Told, View
from tests.report.made_events import epoch, evaluation, set_otherwise
from tests.report.made_study import Job, run_of


def measured(job: Job, epoch_s: float, accuracy: float = 0.9) -> RunMeasure:
    """Return a run of one epoch, by the records of its first rank."""
    trained = epoch(train_s=epoch_s, samples=1200, loss_sum=1200.0, correct=600)
    judged = evaluation(samples=10_000, loss_sum=5e3, correct=accuracy * 10_000)
    return measure_run(run_of(job, "s"), {0: measure_rank([trained, judged])})


def known(run: RunMeasure, **values: object) -> RunMeasure:
    """Return a run with measures that its records would say."""
    made = copy(run)
    vars(made).update(values)
    return made


def repeated(*runs: tuple[Job, float]) -> list[RunMeasure]:
    """Each run three times, with seeds of its own, half a percent apart."""
    return [
        measured(replace(job, seed=seed), epoch_s * factor)
        for job, epoch_s in runs
        for seed, factor in enumerate((0.995, 1.0, 1.005))
    ]


def on_nodes(run: RunMeasure, nodes: int) -> RunMeasure:
    assert run.run is not None
    named = msgspec.structs.replace(run.run, run=f"{run.name}-{nodes}n")
    changed = set_otherwise(named, nodes=nodes)
    return replace(run, name=changed.run, run=changed)


def view_of(runs: Iterable[RunMeasure], page: Page = SCALING) -> View:
    """Return the view of runs that lie nowhere."""
    found = tuple(runs)
    study = Study(
        study="s", kind="scaling", command="", started_at="", runs=[run.name for run in found]
    )
    measures = StudyMeasures(folder=Path(), study=study, runs=found)
    return View(page, training_rows(measures))


def told(view: View, claim: Claim | type) -> list[Told]:
    """Return what a claim, or the claims of a class, say."""
    claims = [c for c in view.page.claims if c is claim or type(c) is claim]
    assert claims
    return [each for one in claims for each in one.tell(view)]


def texts(view: View, claim: Claim | type) -> list[str]:
    return [each.text for each in told(view, claim)]


def read(folder: Path) -> tuple[Content, list[View]]:
    """Return the content and the views of a folder's page."""
    content = content_of(folder)
    return content, content.views


def table_of(view: View, title: str) -> Table | None:
    """Return a table of a view's page; None where it has no rows."""
    made = [t for spec in view.page.tables for t in tables(view, spec) if t.title == title]
    return made[0] if made else None


def rows_of(table: Table) -> list[dict[str, str]]:
    """Return the rows by the names of the columns; of two with one name the later."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def check_claims(content: Content) -> None:
    """Check that claims are said as a paper says them, and the headline is short."""
    assert len(content.headline.split()) <= 12, content.headline
    for _, text in content.claims:
        if re.search(r"faster than|slower than", text) and "every step up to" not in text:
            assert "95 % CI" in text, text
