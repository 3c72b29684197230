"""`phalanx train --model file.py:function`: a model and a loss of the user's, as any other."""

import re
import shutil
from pathlib import Path

import pytest

from phalanx.records.events import EpochEvent, EvaluationEvent, SummaryEvent
from phalanx.records.files import read_events, read_run
from phalanx.report.folder import read_folder
from tests.cli.conftest import Phalanx

pytestmark = pytest.mark.mpi

OWN = Path(__file__).parents[1] / "models" / "programs" / "own.py"
SMALL = ("--dataset", "digits", "--train-samples", "300", "--validation-samples", "50")
SAVED = ("--checkpoint-dir", "saved")


def test_it_trains_reports_its_loss_alone_and_resumes_as_itself(
    forked_phalanx: Phalanx, tmp_path: Path
) -> None:
    shutil.copy(OWN, tmp_path / "own.py")
    words = ("train", "--model", "own.py:autoencoder", "--loss", "own.py:squares", *SMALL, *SAVED)
    ranks = ("--strategy", "mpi", "--ranks", "2", "--epochs", "1", "--lr-schedule", "constant")
    done = forked_phalanx(*words, *ranks, "--run-dir", "run")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("epoch "))
    assert re.match(r"epoch 1/1  loss \d\.\d{4}  validation \d\.\d{4}  [\d,]+ images/s", line), line
    assert read_run(tmp_path / "run").setting.model == "own.py:autoencoder"
    events = list(read_events(tmp_path / "run" / "rank-0.jsonl"))
    counting = [e for e in events if isinstance(e, EpochEvent | EvaluationEvent)]
    assert [event.correct for event in counting] == [None, None]
    (summary,) = (event for event in events if isinstance(event, SummaryEvent))
    assert summary.validation_accuracy is None
    (measure,) = read_folder(tmp_path / "run").runs
    assert measure.epochs[-1].validation_accuracy is None
    assert measure.epochs[-1].validation_loss == pytest.approx(summary.validation_loss)

    other = (*words[:2], "own.py:perceptron", *SMALL, *SAVED, "--resume", "saved")
    done = forked_phalanx(*other, "--epochs", "2", "--allow-changes")
    assert done.returncode == 2
    assert "epoch-0001 has a different model (Autoencoder there, Perceptron here): " in done.stderr
    assert "first.weight is missing there, (16, 784) here;" in done.stderr
    assert "; and 5 more" in done.stderr

    again = ("--resume", "saved", "--epochs", "2", "--lr-schedule", "constant")
    done = forked_phalanx(*words, *again, "--run-dir", "again")
    assert done.returncode == 0, done.stderr
    assert "epoch 2/2" in done.stdout
