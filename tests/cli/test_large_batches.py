"""What large batches need, from the command to what is shown, with real runs."""

import re
from pathlib import Path

import pytest

from phalanx.records.events import SkippedEvent, StepEvent, SummaryEvent
from phalanx.records.files import read_events, read_run
from tests.cli.conftest import Phalanx

pytestmark = pytest.mark.mpi

TINY = ("--dataset", "digits", "--train-samples", "600", "--validation-samples", "100")
TOO_HIGH = ("--optimizer", "sgd", "--lr", "1e4", "--lr-schedule", "constant", "--batch-size", "60")


def test_a_scaled_rate_and_a_warm_up_are_said_first(
    forked_phalanx: Phalanx, tmp_path: Path
) -> None:
    done = forked_phalanx(
        *("train", *TINY, "--epochs", "2", "--warmup-epochs", "0.5", "--lr-rule", "linear"),
        *("--batch-size", "256", "--lr", "0.01", "--run-dir", str(tmp_path / "run")),
    )
    assert done.returncode == 0, done.stderr
    assert (
        "learning rate 0.02 (rule: linear, from 0.01 for batch 128 to 0.02 for batch 256, "
        "schedule: linear warm-up of 0.5 epochs, then cosine)"
    ) in done.stdout


NOT_FINITE = ": gradients are not finite(: the loss of| on) rank"


def test_gradients_that_are_not_finite_stop_the_run(
    forked_phalanx: Phalanx, tmp_path: Path
) -> None:
    words = ("--strategy", "mpi", "--ranks", "2", "--epochs", "1")
    done = forked_phalanx("train", *TINY, *TOO_HIGH, *words, "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 2
    assert re.search(NOT_FINITE, done.stderr)
    assert "the backward pass first produced them at output" in done.stderr
    assert "--bad-gradients skip" in done.stderr
    assert read_run(tmp_path / "run").outcome.status == "failed"


def test_or_the_steps_are_skipped_and_counted(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    words = ("--epochs", "2", "--bad-gradients", "skip")
    done = forked_phalanx("train", *TINY, *TOO_HIGH, *words, "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    events = list(read_events(tmp_path / "run" / "rank-0.jsonl"))
    skipped = [event.step for event in events if isinstance(event, StepEvent) and event.is_skipped]
    assert skipped
    assert [event.step for event in events if isinstance(event, SkippedEvent)] == skipped
    assert sum(event.skipped for event in events if isinstance(event, SummaryEvent)) == len(skipped)
    assert "steps skipped" in done.stdout
    assert re.search(f"skipped step {skipped[0]}{NOT_FINITE} 0", done.stdout)


@pytest.mark.long
def test_a_study_is_made_once_and_drawn(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    words = (
        *("study", "large-batch", *TINY, "--batch-sizes", "64", "256", "--epochs", "2"),
        *("--remedies", "linear-warmup", "--study-dir", str(tmp_path / "study")),
    )
    done = forked_phalanx(*words)
    assert done.returncode == 0, done.stderr
    assert "plain, batch 64" in done.stdout
    page = (tmp_path / "study" / "report.html").read_text()
    assert "linear-warmup-b256-s0" in page
    again = forked_phalanx(*words)
    assert again.returncode == 0
    assert "[1/" not in again.stdout
