"""The page of a large-batch study and its sentences, from records that were made up."""

import io
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from phalanx.records.files import rank_file, read_run, write_record
from phalanx.records.schema import Outcome
from phalanx.report.findings import AccuracyDifference
from phalanx.report.large_batch.accuracy_comparison import (
    compare_to_baseline,
    largest_holding_by_remedy,
)
from phalanx.report.large_batch.charts import batch_rows, loss_rows
from phalanx.report.large_batch.findings import best_remedy, headline, holds, soonest
from phalanx.report.large_batch.page import content_of
from phalanx.report.large_batch.study_data import LargeBatchStudyData, read_study_data
from phalanx.report.large_batch.summary import show
from phalanx.report.large_batch.tables import remedies, times
from phalanx.report.page import write_report
from tests.report.large_batch.made_large_batch import ACCURACY, large_batch_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_batch_study(tmp_path_factory.mktemp("large") / "study")


@pytest.fixture(scope="module")
def made(folder: Path) -> LargeBatchStudyData:
    return read_study_data(folder)


def failing(data: LargeBatchStudyData, remedy: str) -> tuple[str, AccuracyDifference]:
    """Up to which batch a remedy holds the accuracy, and the first batch that does not."""
    reached, first = holds(data, remedy)
    assert isinstance(reached, str) and isinstance(first, AccuracyDifference)
    return reached, first


def test_the_page_is_made_of_the_records(folder: Path, tmp_path: Path) -> None:
    text = write_report(folder, tmp_path / "report.html").read_text()
    assert "LAMB holds the accuracy of its optimizer at batch 128, to 0.25 points" in text
    assert "<b>first</b>" not in text
    assert "&lt;b&gt;first&lt;/b&gt;" in text
    for title in (
        "Remedies",
        "To the target accuracy",
        "Accuracy and generalisation gap against batch",
    ):
        assert f">{title}</h3>" in text


def test_cells_are_remedies_at_batches(made: LargeBatchStudyData) -> None:
    assert made.batch_sizes == [128, 1024, 4096]
    assert made.remedies == [
        "plain", "LARS", "LAMB", "linear", "linear, warm-up", "square root, warm-up",
    ]  # fmt: skip
    assert made.baseline is not None and made.baseline.accuracy is not None
    assert made.baseline.accuracy.mean == pytest.approx(0.982, abs=2e-4)
    assert made.target == pytest.approx(0.98)


def test_what_holds_the_accuracy_is_told(made: LargeBatchStudyData) -> None:
    assert holds(made, "LAMB") == ["Up to batch 4,096, held to LAMB, batch 128."]
    reached, first = failing(made, "linear, warm-up")
    assert reached == "up to batch 1,024, held to plain, batch 128"
    assert (first.subject, first.verdict) == ("batch 4,096", "is below")
    assert first.interval is not None
    assert first.interval.estimate == pytest.approx(-0.0031, abs=1e-4)
    reached, first = failing(made, "linear")
    assert (first.subject, first.verdict, first.facts) == (
        "batch 4,096",
        "diverged",
        "4 of 4 seeds",
    )
    reached, first = failing(made, "plain")
    assert reached.startswith("up to no larger batch")
    assert first.subject == "batch 1,024"


def test_a_remedy_is_held_to_itself(made: LargeBatchStudyData) -> None:
    """LARS at 4,096 was as good as plain SGD at 128, and below LARS at 128: it held `the accuracy
    of batch 128`."""
    assert made.baseline is not None and made.baseline.accuracy is not None
    lars = made.cell("LARS", 4096)
    assert lars is not None and lars.accuracy is not None
    assert lars.accuracy.mean > made.baseline.accuracy.high, "better than the base recipe"
    results = {h.cell.batch_size: h for h in compare_to_baseline(made, "LARS")}
    assert (results[1024].verdict, results[4096].verdict) == ("holds", "is below")
    assert [cell.remedy for cell in largest_holding_by_remedy(made) if cell.batch_size == 4096] == [
        "LAMB"
    ]


def test_no_batch_is_passed_over_that_failed(tmp_path: Path) -> None:
    """Fails at 1,024 and holds at 4,096: that was `up to batch 4,096`."""
    means = {**ACCURACY, ("lamb", 1_024): 0.90}
    made = read_study_data(large_batch_study(tmp_path / "hole", means))
    assert "4,096" not in headline(made)
    reached, first = failing(made, "LAMB")
    assert reached.startswith("up to no larger batch")
    assert (first.subject, first.verdict) == ("batch 1,024", "is below")
    assert [h.verdict for h in compare_to_baseline(made, "LAMB")] == ["is below", "holds"]


def test_no_batch_is_passed_over_that_was_not_run_to_its_end(tmp_path: Path) -> None:
    """All runs of LAMB at 1,024 crashed, or no remedy was run there: that was `up to 4,096`."""
    crashed = large_batch_study(tmp_path / "crashed")
    for path in crashed.glob("lamb-b1024-s*"):
        made_run = read_run(path)
        outcome = Outcome(status="failed", error="rank 0: killed", rank=0)
        write_record(path, msgspec.structs.replace(made_run, outcome=outcome))
        rank_file(path, 0).unlink()
    missing = large_batch_study(tmp_path / "missing")
    for path in missing.glob("*-b1024-s*"):
        shutil.rmtree(path)
    for folder in (crashed, missing):
        made = read_study_data(folder)
        assert "4,096" not in headline(made)
        reached, first = failing(made, "LAMB")
        assert reached.startswith("up to no larger batch")
        assert (first.subject, first.verdict) == ("batch 1,024", "unclear")
        assert first.facts == "no run of it came to its end"
        assert content_of(made).sections


def test_no_base_is_made_of_a_larger_batch(tmp_path: Path) -> None:
    folder = large_batch_study(tmp_path / "study")
    for path in folder.glob("*-b128-s*"):
        shutil.rmtree(path)
    made = read_study_data(folder)
    assert headline(made) == "The recipe of the smallest batch has not been run to its end yet"
    assert content_of(made).key_figures == []


def test_the_last_seed_that_is_left_is_not_the_best(tmp_path: Path) -> None:
    """4 of 5 seeds of `linear` diverged, the fifth had 99 %: `best is linear with 99.00 %`."""
    cell = ("linear", 4_096)
    means = {**ACCURACY, cell: 0.990}
    gone = [(cell, seed) for seed in (0, 1, 2)]
    made = read_study_data(large_batch_study(tmp_path / "left", means, gone))  # type: ignore[arg-type]
    best = best_remedy(made, 4_096)
    assert isinstance(best, AccuracyDifference)
    assert best.subject.startswith("LARS")
    _, first = failing(made, "linear")
    assert (first.verdict, first.facts) == ("diverged", "3 of 4 seeds")


def test_one_bad_seed_of_the_baseline_makes_nothing_hold(tmp_path: Path) -> None:
    """98.5 % four times and 90 % once: everything from 90 % up `held the accuracy`."""
    made = read_study_data(large_batch_study(tmp_path / "s"))
    (plain,) = (cell for cell in made.cells if cell.label == "plain, batch 128")
    last = plain.runs[0].trained[-1]
    bad = replace(last, validation_accuracy=0.90)
    runs = (replace(plain.runs[0], epochs=(*plain.runs[0].epochs[:-1], bad)), *plain.runs[1:])
    cells = tuple(replace(c, runs=runs) if c is plain else c for c in made.cells)
    results = [h for r in ("plain", "linear", "linear, warm-up")
               for h in compare_to_baseline(replace(made, cells=cells), r)]  # fmt: skip
    assert results
    assert not any(result.verdict == "holds" for result in results)


def test_one_seed_holds_nothing(tmp_path: Path) -> None:
    made = read_study_data(large_batch_study(tmp_path / "s", seeds=(0,)))
    assert (
        headline(made) == "No remedy is seen to hold the accuracy of batch 128 up to a larger one"
    )
    _, first = failing(made, "LARS")
    assert (first.subject, first.verdict, first.interval) == ("batch 1,024", "unclear", None)


def test_the_best_remedy_is_told(made: LargeBatchStudyData) -> None:
    best = best_remedy(made, 4_096)
    assert isinstance(best, AccuracyDifference)
    assert (best.subject, best.against) == ("LARS with 98.34 %", "LARS, batch 128")
    assert best.verdict == "is below" and best.interval is not None
    assert best.interval.estimate == pytest.approx(-0.0016, abs=1e-4)


def test_what_diverged_is_drawn_as_far_as_it_went(made: LargeBatchStudyData) -> None:
    gone = [row for row in loss_rows(made.at(4096)) if row["strategy"] == "linear"]
    assert [row["epoch"] for row in gone] == [1] * 4
    assert {row["status"] for row in gone} == {"diverged"}
    assert "linear" not in {r["strategy"] for r in batch_rows(made) if r["batch_size"] == 4096}


def test_the_gap_and_the_time_to_the_target(made: LargeBatchStudyData) -> None:
    gaps = {row["batch_size"]: row["gap"] for row in batch_rows(made) if row["strategy"] == "plain"}
    assert gaps[128] == pytest.approx(0.005)
    assert gaps[4096] == pytest.approx(0.005)
    text = soonest(made)
    assert text is not None
    assert text.startswith("LARS, batch 4,096 is the first of 6 that reach 98.0 % with every seed")
    (row,) = (r for r in times(made).rows if r[:2] == ("plain", "128"))
    assert row[2:5] == ("4 of 4", "4.0", "512")


def test_the_table_has_every_cell(made: LargeBatchStudyData) -> None:
    rows = {row[:2]: row for row in remedies(made).rows}
    assert len(rows) == 15
    assert rows["linear", "4,096"][4:9] == ("\N{EN DASH}",) * 3 + ("4", "4")
    assert rows["linear, warm-up", "4,096"][2] == "0.96"


def test_all_charts_and_a_summary(made: LargeBatchStudyData) -> None:
    content = content_of(made)
    assert [section.name for section in content.sections] == ["loss", "target"]
    assert content.leading is not None and len(content.leading.panels) == 2
    assert [key.label for key in content.key_figures] == ["LAMB", "LARS", "linear"]
    console = Console(file=io.StringIO(), width=140)
    show(made, console)
    assert "LAMB: Up to batch 4,096" in console.file.getvalue()  # type: ignore[attr-defined]


def test_of_nothing_nothing_is_claimed(made: LargeBatchStudyData) -> None:
    empty = LargeBatchStudyData(measures=made.measures, cells=())
    assert headline(empty) == "The recipe of the smallest batch has not been run to its end yet"
    assert content_of(empty).sections == ()
