"""What is wrong is said in a line or two, before anything is started; exit code 2."""

from pathlib import Path

import pytest

from tests.cli.conftest import Phalanx

CASES = {
    "an unknown scheme": (["--scheme", "star"], 'Invalid value "star" for --scheme'),
    "a learning rate of nothing": (["--lr", "0"], "--lr must be positive, not 0"),
    "no worker": (
        ["--scheme", "server", "--ranks", "2", "--servers", "2"],
        "--servers 2 of --ranks 2 leaves no worker: use --ranks 3 or more",
    ),
    "a layer too narrow": (
        ["--scheme", "tensor", "--ranks", "6", "--hidden", "4"],
        "splits the 4 outputs of layer 1 over 6 ranks",
    ),
    "a batch too small": (["--ranks", "4", "--batch-size", "3"], "use --batch-size 4 or more"),
    "data that is not there": (["--dataset", "mnist"], "phalanx data fetch mnist"),
    "too many samples": (["--train-samples", "60001"], "--train-samples must be 1 to 60000"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_options(forked_phalanx: Phalanx, tmp_path: Path, case: str) -> None:
    words, message = CASES[case]
    done = forked_phalanx("scratch", *words)
    assert message in done.stderr
    assert done.stderr.startswith("phalanx: ")
    assert len(done.stderr.splitlines()) <= 2
    assert done.returncode == 2
    assert not list(tmp_path.iterdir()), "nothing is written for a run that cannot be"


def test_a_folder_of_another_run_is_not_written_to(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    done = forked_phalanx(
        "scratch", "--scheme", "alone", "--dataset", "digits", "--run-dir", str(tmp_path)
    )
    assert done.returncode == 2
    assert "already holds the records of a run: name another" in done.stderr


def test_a_launcher_is_not_needed(forked_phalanx: Phalanx, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "4"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    done = forked_phalanx("scratch", "--dataset", "digits")
    assert done.returncode == 2
    assert "openmpi has started 4: leave the launcher out, and say --ranks 4" in done.stderr


def test_help_has_examples(forked_phalanx: Phalanx) -> None:
    done = forked_phalanx("scratch", "--help")
    assert done.returncode == 0
    assert done.stdout.count(" phalanx scratch") >= 4
