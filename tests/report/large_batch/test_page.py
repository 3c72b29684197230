"""The page of a large-batch study and its sentences, from records that were made up."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.report.large_batch.charts import batch_rows, loss_rows
from phalanx.report.large_batch.findings import findings, headline
from phalanx.report.large_batch.material import Material, read_material
from phalanx.report.large_batch.page import content_of
from phalanx.report.large_batch.summary import show
from phalanx.report.large_batch.tables import remedies, times
from phalanx.report.page import write_report
from tests.report.large_batch.made_large_batch import large_batch_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_batch_study(tmp_path_factory.mktemp("large") / "study")


@pytest.fixture(scope="module")
def made(folder: Path) -> Material:
    return read_material(folder)


def sentences(made: Material, title: str) -> dict[str, str]:
    (topic,) = (topic for topic in findings(made) if topic.title == title)
    return {sentence.label: sentence.text for sentence in topic.sentences}


def test_the_page_is_made_of_the_records(folder: Path, tmp_path: Path) -> None:
    text = write_report(folder, tmp_path / "report.html").read_text()
    assert "LARS holds the accuracy of batch 128 up to batch 4,096" in text
    assert "<b>first</b>" not in text
    assert "&lt;b&gt;first&lt;/b&gt;" in text
    for title in (
        "Remedies",
        "To the target accuracy",
        "Accuracy and generalisation gap against batch",
    ):
        assert f">{title}</h3>" in text


def test_cells_are_remedies_at_batches(made: Material) -> None:
    assert made.batch_sizes == [128, 1024, 4096]
    assert made.remedies == [
        "plain", "LARS", "LAMB", "linear", "linear, warm-up", "square root, warm-up",
    ]  # fmt: skip
    assert made.baseline is not None and made.baseline.accuracy is not None
    assert made.baseline.accuracy.mean == pytest.approx(0.982)
    assert made.target == pytest.approx(0.975)


def test_what_holds_the_accuracy_is_told(made: Material) -> None:
    told = sentences(made, "Which batch holds the accuracy")
    assert told["LARS"] == "up to batch 4,096: 98.30 %, from 98.10 % to 98.50 % over 2 seeds."
    assert told["linear, warm-up"].startswith("up to batch 1,024: 98.35 %")
    assert told["LAMB"] == "at none of the batches tried, 1,024 and 4,096."
    assert told["plain, batch 128"] == "98.20 %, from 98.00 % to 98.40 % over 2 seeds."


def test_what_a_large_batch_costs_is_told(made: Material) -> None:
    told = sentences(made, "What a large batch costs")
    assert told["batch 4,096"] == (
        "as it is the recipe comes to 93.10 % (\N{MINUS SIGN}5.10 points); "
        "best is LARS with 98.30 % (+0.10 points)."
    )


def test_what_diverged_is_told_and_drawn_as_far_as_it_went(made: Material) -> None:
    told = sentences(made, "Where training is unstable")
    assert told == {"linear, batch 4,096": "2 of 2 seeds diverged (at step 3)."}
    gone = [row for row in loss_rows(made.at(4096)) if row["strategy"] == "linear"]
    assert [row["epoch"] for row in gone] == [1, 1]
    assert {row["status"] for row in gone} == {"diverged"}
    assert "linear" not in {r["strategy"] for r in batch_rows(made) if r["batch_size"] == 4096}
    warm = sentences(made, "Warm-up")
    assert warm["batch 4,096"].endswith("without: every seed diverged.")


def test_the_gap_and_the_time_to_the_target(made: Material) -> None:
    gaps = sentences(made, "Generalisation gap")
    assert gaps["plain"] == "+1.00 points at batch 128, +1.00 at 4,096."
    told = sentences(made, "Time to the target")
    assert told["to 97.5 %"].startswith("8 of 15 combinations")
    (row,) = (r for r in times(made).rows if r[:2] == ("plain", "128"))
    assert row[2:5] == ("2 of 2", "4.0", "512")


def test_the_table_has_every_cell(made: Material) -> None:
    rows = {row[:2]: row for row in remedies(made).rows}
    assert len(rows) == 15
    assert rows["linear", "4,096"][4:9] == ("\N{EN DASH}",) * 3 + ("2", "2")
    assert rows["linear, warm-up", "4,096"][2] == "0.96"


def test_all_charts_and_a_summary(made: Material) -> None:
    content = content_of(made)
    assert [section.name for section in content.sections] == ["loss", "target"]
    assert content.leading is not None and len(content.leading.panels) == 2
    assert [key.label for key in content.key_figures] == ["LARS", "linear", "linear, warm-up"]
    console = Console(file=io.StringIO(), width=140)
    show(made, console)
    assert "LARS: up to batch 4,096" in console.file.getvalue()  # type: ignore[attr-defined]


def test_of_nothing_nothing_is_claimed(made: Material) -> None:
    empty = Material(measures=made.measures, cells=())
    assert headline(empty) == "The recipe of the smallest batch has not been run to its end yet"
    assert content_of(empty).sections == ()
