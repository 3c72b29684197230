"""What is wrong is said in a line or two, with its value and the mend; exit code 2."""

from pathlib import Path

import pytest

from tests.cli.conftest import Phalanx

CASES = {
    "an unknown model": (["--model", "vgg"], 'Invalid value "vgg" for --model'),
    "no ranks": (["--strategy", "mpi", "--ranks", "0"], "--ranks must be at least 1, not 0"),
    "a word for a number": (["--epochs", "five"], 'unable to convert "five" into int'),
    "a fraction, taken as 2 before": (["--epochs", "2.5"], 'unable to convert "2.5" into int'),
    "a misspelt option": (["--epoch", "5"], "Did you mean --epochs?"),
    "a batch smaller than the ranks": (
        ["--strategy", "mpi", "--ranks", "4", "--batch-size", "3"],
        "--batch-size 3 is the global batch size, but there are 4 ranks: give at least 4",
    ),
    "two kinds of batch size": (
        ["--batch-size", "64", "--per-rank-batch-size", "32"],
        "exclude each other",
    ),
    "sequential ranks": (["--ranks", "2"], "use --strategy mpi --ranks 2"),
    "data that is not there": (["--dataset", "mnist"], "phalanx data fetch mnist"),
    "a data folder that is none": (["--data-root", "nowhere"], "nowhere is not a folder"),
    "nothing to resume from": (["--resume", "nowhere"], "--resume nowhere: there is no such"),
    "a fault of the only rank": (["--inject", "kill:15"], "the last living rank is never hit"),
    "too many samples": (["--train-samples", "60001"], "--train-samples must be 1 to 60000"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_options(forked_phalanx: Phalanx, tmp_path: Path, case: str) -> None:
    words, message = CASES[case]
    done = forked_phalanx("train", *words)
    assert message in done.stderr
    assert done.stderr.startswith("phalanx: ")
    assert len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr + done.stdout
    assert done.returncode == 2
    if case != "too many samples":
        assert not list(tmp_path.iterdir()), "nothing is written for a run that cannot be"


def test_truncated_data_is_named(forked_phalanx: Phalanx, tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "shared" / "data" / "mnist"
    if not source.is_dir():
        pytest.skip("there is no copy of MNIST beside the repository")
    for file in source.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[: len(content) // 2])
    done = forked_phalanx("train", "--dataset", "mnist", "--data-root", str(tmp_path))
    assert done.returncode == 2
    assert "t10k" in done.stderr or "train-" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_an_unknown_command(forked_phalanx: Phalanx) -> None:
    done = forked_phalanx("tain")
    assert done.returncode == 2
    assert 'Unknown command "tain". Did you mean "train"?' in done.stderr


@pytest.mark.parametrize("command", ["train", "study scaling", "report", "data fetch"])
def test_help_has_examples(forked_phalanx: Phalanx, command: str) -> None:
    done = forked_phalanx(*command.split(), "--help")
    assert done.returncode == 0
    assert f"Usage: phalanx {command}" in done.stdout
    assert "For example:" in done.stdout
    assert done.stdout.count(f" phalanx {command}") >= 3


def test_help_names_every_command(phalanx: Phalanx) -> None:
    done = phalanx("--help")
    assert done.returncode == 0
    for command in ("train", "study", "report", "data", "doctor"):
        assert f" {command} " in done.stdout
