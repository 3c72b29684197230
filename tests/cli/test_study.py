"""`phalanx study scaling` from the command to the page, with real runs."""

import signal
import time
from pathlib import Path

import pytest

from phalanx.records.files import read_run, read_study
from tests.cli.conftest import Phalanx, Started

pytestmark = pytest.mark.mpi

TINY = (
    *("study", "scaling", "--dataset", "digits", "--models", "mlp", "rnn", "--epochs", "1"),
    *("--train-samples", "600", "--validation-samples", "200"),
    *("--threads", "1", "--ranks", "2", "--seeds", "0"),
)


def statuses(folder: Path) -> dict[str, str]:
    return {
        name: read_run(folder / name).outcome.status
        for name in read_study(folder).runs
        if (folder / name / "run.json").exists()
    }


def test_a_study_is_made_once_and_drawn(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    done = forked_phalanx(*TINY, "--study-dir", str(folder))
    assert done.returncode == 0, done.stderr
    assert list(statuses(folder).values()) == ["completed"] * 6
    page = (folder / "report.html").read_text()
    assert "rnn-gloo-2x1-b128-s0" in page

    again = forked_phalanx(*TINY, "--study-dir", str(folder))
    assert again.returncode == 0
    assert "6 of 6 runs are already done" in again.stdout

    for more, told in (
        (("--batch-sizes", "64"), "holds another study"),
        (("--lr", "0.3"), "was started with other options: --lr 0.001, now 0.3"),
    ):
        other = forked_phalanx(*TINY, *more, "--study-dir", str(folder))
        assert other.returncode == 2
        assert told in other.stderr


@pytest.mark.long
def test_an_interrupted_study_goes_on(phalanx: Phalanx, started: Started, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    words = (*TINY, "--study-dir", str(folder))
    process = started(*words)
    second = folder / "mlp-mpi-2x1-b128-s0" / "run.json"
    deadline = time.monotonic() + 60
    while not second.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    before = statuses(folder)
    assert list(before.values()) == ["completed", "interrupted"]
    done = phalanx(*words)
    assert done.returncode == 0, done.stderr
    assert "1 of 6 runs are already done" in done.stdout
    assert list(statuses(folder).values()) == ["completed"] * 6
    assert (folder / "attempts" / "mlp-mpi-2x1-b128-s0.1" / "run.json").exists()


@pytest.mark.long
def test_a_run_that_fails_is_shown_and_does_not_end_the_study(
    phalanx: Phalanx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gloo on a network interface that does not exist cannot start; the others can."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    folder = tmp_path / "study"
    done = phalanx(*TINY, "--study-dir", str(folder))
    assert done.returncode == 1
    assert "2 of 6 runs failed" in done.stderr
    assert sorted(statuses(folder).values()) == ["completed"] * 4 + ["failed"] * 2
    assert "nowhere0" in (folder / "report.html").read_text()
