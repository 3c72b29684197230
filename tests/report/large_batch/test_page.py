"""The page of a large-batch study: what holds the accuracy, and what must not be said to."""

import io
import shutil
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from phalanx.records.files import rank_file, read_run, write_record
from phalanx.records.schema import Outcome
from phalanx.report.build import content_of
from phalanx.report.page import write_report
from phalanx.report.pages.large_batch import (
    base_recipe,
    batches,
    best_remedies,
    compare,
    headline,
    holding,
    reached,
    remedies,
    soonest,
    target,
)
from phalanx.report.training_page import ACCURACY
from phalanx.report.values import View
from tests.report.large_batch.made_large_batch import ACCURACY as MEANS
from tests.report.large_batch.made_large_batch import large_batch_study
from tests.report.made_view import check_claims, read, rows_of, table_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large_batch_study(tmp_path_factory.mktemp("large") / "study")


@pytest.fixture(scope="module")
def made(folder: Path) -> View:
    return view_of(folder)


def view_of(folder: Path) -> View:
    _, (view,) = read(folder)
    return view


def held(view: View, remedy: str) -> str:
    """What is told of a remedy."""
    (text,) = (t.text for t in holding(view) if t.text.startswith(f"{remedy}: "))
    return text.removeprefix(f"{remedy}: ")


def verdicts(view: View, remedy: str) -> dict[int, str]:
    return {size: told.verdict for size, told in compare(view, remedy)}


def test_the_page_is_made_of_the_records(folder: Path, tmp_path: Path) -> None:
    content, _ = read(folder)
    check_claims(content)
    assert content.headline == "LAMB: accuracy held up to batch 4,096"
    assert [(k.label, k.value) for k in content.key_figures] == (
        [("LAMB", "4,096"), ("LARS", "1,024"), ("linear", "1,024")]
    )
    text = write_report(folder, tmp_path / "report.html").read_text()
    assert "<b>first</b>" not in text
    assert "&lt;b&gt;first&lt;/b&gt;" in text
    for title in (
        "Remedies",
        "To the target accuracy",
        "Accuracy and generalisation gap against batch",
    ):
        assert f">{title}</h3>" in text


def test_cells_are_remedies_at_batches(made: View) -> None:
    assert batches(made) == [128, 1024, 4096]
    assert set(remedies(made)) == {
        "plain", "LARS", "LAMB", "linear", "linear, warm-up", "square root, warm-up",
    }  # fmt: skip
    base = base_recipe(made)
    assert base is not None
    assert ACCURACY.estimate(base) == pytest.approx(0.982, abs=2e-4)
    assert target(made) == pytest.approx(0.98)


def test_what_holds_the_accuracy_is_told(made: View) -> None:
    assert held(made, "LAMB") == "accuracy held up to batch 4,096"
    assert held(made, "linear, warm-up").startswith(
        "accuracy held up to batch 1,024; batch 4,096: accuracy below plain, batch 128, −0.31"
    )
    assert held(made, "linear") == (
        "accuracy held up to batch 1,024; batch 4,096 diverged with 4 of 4 seeds"
    )
    assert held(made, "plain").startswith("accuracy held at no larger batch; batch 1,024: accuracy")


def test_a_remedy_is_held_to_itself(made: View) -> None:
    """LARS at 4,096 was as good as plain SGD at 128, and below LARS at 128: it held `the accuracy
    of batch 128`."""
    cells = {(row["remedy"], row["batch_size"]): row for row in made.frame("cells")}
    base = base_recipe(made)
    assert base is not None
    assert cells["LARS", 4096]["accuracy"] > max(base.values("accuracy"))
    assert verdicts(made, "LARS") == {1024: "holds", 4096: "is below"}
    assert [name for name, size in reached(made).items() if size == 4096] == ["LAMB"]


def test_no_batch_is_passed_over_that_failed(tmp_path: Path) -> None:
    """Fails at 1,024 and holds at 4,096: that was `up to batch 4,096`."""
    view = view_of(large_batch_study(tmp_path / "hole", {**MEANS, ("lamb", 1_024): 0.90}))
    assert "4,096" not in headline(view)
    assert held(view, "LAMB").startswith(
        "accuracy held at no larger batch; batch 1,024: accuracy b"
    )
    assert verdicts(view, "LAMB") == {1024: "is below", 4096: "holds"}


def test_no_batch_is_passed_over_that_was_not_run_to_its_end(tmp_path: Path) -> None:
    """All runs of LAMB at 1,024 crashed, or no remedy was run there: that was `up to 4,096`."""
    crashed = large_batch_study(tmp_path / "crashed")
    for path in crashed.glob("lamb-b1024-s*"):
        outcome = Outcome(status="failed", error="rank 0: killed", rank=0)
        write_record(path, msgspec.structs.replace(read_run(path), outcome=outcome))
        rank_file(path, 0).unlink()
    missing = large_batch_study(tmp_path / "missing")
    for path in missing.glob("*-b1024-s*"):
        shutil.rmtree(path)
    for folder in (crashed, missing):
        view = view_of(folder)
        assert "4,096" not in headline(view)
        assert held(view, "LAMB") == (
            "accuracy held at no larger batch; batch 1,024: none of its runs completed"
        )
        assert read(folder)[0].sections


def test_no_base_is_made_of_a_larger_batch(tmp_path: Path) -> None:
    folder = large_batch_study(tmp_path / "study")
    for path in folder.glob("*-b128-s*"):
        shutil.rmtree(path)
    content, _ = read(folder)
    assert content.headline == "The recipe of the smallest batch has not run yet"
    assert content.key_figures == []


def test_the_last_seed_that_is_left_is_not_the_best(tmp_path: Path) -> None:
    """4 of 5 seeds of `linear` diverged, the fifth had 99 %: `best is linear with 99.00 %`."""
    cell = ("linear", 4_096)
    gone = [(cell, seed) for seed in (0, 1, 2)]
    view = view_of(large_batch_study(tmp_path / "left", {**MEANS, cell: 0.990}, gone))  # type: ignore[arg-type]
    *_, best = best_remedies(view)
    assert best.text.startswith("batch 4,096: best is LARS")
    assert held(view, "linear").endswith("batch 4,096 diverged with 3 of 4 seeds")


def test_one_bad_seed_of_the_baseline_makes_nothing_hold(tmp_path: Path) -> None:
    """98.5 % four times and 90 % once: everything from 90 % up `held the accuracy`."""
    view = view_of(large_batch_study(tmp_path / "s"))
    base = base_recipe(view)
    assert base is not None
    base.rows[0]["accuracy"] = 0.90  # type: ignore[index]
    found = [v for r in ("plain", "linear", "linear, warm-up") for v in verdicts(view, r).values()]
    assert found and "holds" not in found


def test_one_seed_holds_nothing(tmp_path: Path) -> None:
    view = view_of(large_batch_study(tmp_path / "s", seeds=(0,)))
    assert headline(view) == "No remedy is shown to keep the accuracy of batch 128"
    assert verdicts(view, "LARS")[1024] == "unclear"


def test_the_best_remedy_is_told(made: View) -> None:
    *_, best = best_remedies(made)
    assert best.text.startswith(
        "batch 4,096: best is LARS with 98.34 %; batch 4,096: accuracy below LARS, batch 128, −0.16"
    )


def test_what_diverged_is_drawn_as_far_as_it_went(made: View) -> None:
    rows = [row for row in made.frame("losses") if row["panel"] == "batch 4,096"]
    gone = [row for row in rows if row["remedy"] == "linear"]
    assert [row["epoch"] for row in gone] == [1] * 4
    assert {row["status"] for row in gone} == {"diverged"}
    cells = {(row["remedy"], row["batch_size"]): row for row in made.frame("cells")}
    assert cells["linear", 4096]["accuracy"] is None


def test_the_gap_and_the_time_to_the_target(made: View) -> None:
    gaps = {r["batch_size"]: r["gap"] for r in made.frame("cells") if r["remedy"] == "plain"}
    assert gaps[128] == pytest.approx(0.005)
    assert gaps[4096] == pytest.approx(0.005)
    (told,) = soonest(made)
    assert told.text.startswith("LARS, batch 4,096: first of 6 that reach 98.0 % with every seed")
    table = table_of(made, "To the target accuracy")
    assert table is not None
    (row,) = (r for r in table.rows if r[:2] == ("plain", "128"))
    assert row[2:5] == ("4 of 4", "4.0", "512")


def test_the_table_has_every_cell(made: View, folder: Path) -> None:
    table = table_of(made, "Remedies")
    assert table is not None
    rows = {(row["remedy"], row["batch"]): row for row in rows_of(table)}
    assert len(rows) == 15
    gone = rows["linear", "4,096"]
    assert [gone[c] for c in ("accuracy", "seeds", "diverged")] == ["\N{EN DASH}", "4", "4"]
    assert rows["linear, warm-up", "4,096"]["learning rate"] == "0.96"
    console = Console(file=io.StringIO(), width=140)
    content_of(folder).print_summary(console)
    assert "LAMB: accuracy held up to batch 4,096" in console.file.getvalue()  # type: ignore[attr-defined]
