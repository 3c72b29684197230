"""Hidden and exposed communication: what could be hidden, the chart, the sentence, the page."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from phalanx.records.events import Event, StepEvent
from phalanx.records.files import rank_file
from phalanx.report.build import Content, conditions
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.page import render
from phalanx.report.pages.scaling import SCALING
from phalanx.report.rank_measures import Overlap, mean_overlap, overlap_of, step_table
from phalanx.report.training import training_rows
from tests.report.made_events import write_events
from tests.report.made_study import Job, events_of, make_study
from tests.report.made_view import view_of
from tests.report.trace.made_trace import make_trace

HIDDEN_S, LAST_S = 0.002, 0.001


def overlap(hidden_s: float, exposed_s: float, last_s: float, backward_s: float) -> Overlap:
    return Overlap(
        exposed_s=exposed_s, hidden_s=hidden_s, last_bucket_s=last_s, backward_s=backward_s
    )


@pytest.mark.parametrize(
    ("given", "hideable_s"),
    [
        (overlap(0.006, 0.004, 0.002, 1.0), 0.008),  # all but the last bucket
        (overlap(0.006, 0.004, 0.002, 0.007), 0.007),  # backward is too short
        (overlap(0.0, 0.004, 0.004, 1.0), 0.0),  # one bucket
        (overlap(0.0, 0.0, 0.0, 1.0), 0.0),  # one rank
    ],
)
def test_what_could_be_hidden(given: Overlap, hideable_s: float) -> None:
    assert given.hideable_s == pytest.approx(hideable_s)


def test_steps_that_say_nothing_do_not_count(study: StudyMeasures) -> None:
    assert overlap_of(step_table([])) is None
    assert mean_overlap([]) is None
    for measure in study.runs:
        assert (measure.overlap is not None) == measure.name.startswith("mlp-mpi")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyMeasures:
    """One run that overlaps, and one that does not."""
    folder = tmp_path_factory.mktemp("overlap")
    jobs = [Job("mlp", "sequential", epochs=3), Job("mlp", "mpi", ranks=2, epochs=3)]
    make_study(folder, jobs)
    for rank in range(2):
        path = rank_file(folder / jobs[1].name, rank)
        path.unlink()
        write_events(path, map(with_overlap, events_of(jobs[1], rank)))
    return read_folder(folder)


def with_overlap(event: Event) -> Event:
    is_step = isinstance(event, StepEvent)
    return changed(event, hidden_s=HIDDEN_S, last_bucket_s=LAST_S) if is_step else event


def test_bars_of_a_run_by_itself_are_its_epochs(study: StudyMeasures) -> None:
    rows = view_of(study.runs).frame("overlap")
    assert [row["bar"] for row in rows[::2]] == ["epoch 1", "epoch 2", "epoch 3"]
    assert rows[0]["time_ms"] == pytest.approx(1e3 * HIDDEN_S)
    assert rows[1]["start_ms"] == rows[0]["end_ms"]
    assert view_of(study.runs[:1]).frame("overlap") == []


def test_it_is_on_the_page(study: StudyMeasures) -> None:
    page = render(Content(SCALING, training_rows(study)))
    assert "Hidden and exposed communication" in page
    assert "hideable_ms" in page


def test_a_run_that_is_traced_says_where_to_look(tmp_path: Path) -> None:
    study = read_folder(make_trace(tmp_path / "run"))
    (text,) = (text for _, text in conditions(training_rows(study)) if "trace.json" in text)
    assert "https://ui.perfetto.dev" in text
    silent = replace(study, runs=tuple(replace(run, is_traced=False) for run in study.runs))
    assert not [text for _, text in conditions(training_rows(silent)) if "trace.json" in text]
