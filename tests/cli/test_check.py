"""`phalanx check` names the cause where a program means something else on several ranks, and finds
nothing where it does not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ONE_THREAD, PATIENCE, forked_phalanx, long

PROGRAMS = Path(__file__).parent / "check_programs"
EXAMPLES = Path(__file__).parents[2] / "examples"
CAUSES = {
    "contrastive": "loss over samples",
    "batch_norm": "batch norm",
    "normalised_targets": "loss over samples",
    "unseeded": "generator",
    "clock": "time or file",
    "data_of_the_rank": "data",
    "batch_times_ranks": "batch size",
    "rate_times_ranks": "learning rate",
    "penalty_of_a_rank": "loop",
    "gradients_of_a_rank": "update",
    "hard_examples": "data",
    "log_of_a_rank": "log",
}
OF_PROCESSES = "words_of_a_set"
"""Its order is that of a process, which forks share."""
SOUND = ("dropout", "noise", "stream", "bitwise")
SOUND_EXAMPLES = (
    *("11_own_program", "15_contrastive"),
    *("ports/mnist", "ports/gan", "ports/gpt", "ports/pinn", "ports/forces"),
)

pytestmark = pytest.mark.mpi


@pytest.fixture
def command() -> list[str]:
    """`phalanx` in a fork: it imports PyTorch, too."""
    return forked_phalanx()


def checked(
    command: list[str], program: Path, cwd: Path, code: int, *words: str, num_ranks: int = 3
) -> dict[str, Any]:
    done = subprocess.run(
        [*command, "check", "-n", str(num_ranks), "--json", str(program), *words],
        cwd=cwd,
        env=os.environ | ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
    )
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_broken_program_is_tested() -> None:
    names = {path.stem for path in (PROGRAMS / "broken").glob("*.py")}
    assert names == {*CAUSES, OF_PROCESSES}
    assert {path.stem for path in (PROGRAMS / "sound").glob("*.py")} == {*SOUND, "files"}


@pytest.mark.parametrize(
    ("name", "num_ranks"), [("contrastive", 2), *(long(name, 3) for name in CAUSES)]
)
def test_the_cause_is_named(command: list[str], name: str, num_ranks: int, tmp_path: Path) -> None:
    """Each trains another model on the ranks than alone, or tomorrow than today, without a word."""
    program = PROGRAMS / "broken" / f"{name}.py"
    found = checked(command, program, tmp_path, 1, num_ranks=num_ranks)
    assert [finding["cause"] for finding in found["findings"]] == [CAUSES[name]], found
    assert not found["same"]


@pytest.mark.long
def test_the_order_of_a_set_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "phalanx"]
    found = checked(command, PROGRAMS / "broken" / f"{OF_PROCESSES}.py", tmp_path, 1, num_ranks=2)
    assert [finding["cause"] for finding in found["findings"]] == ["hash order"], found


def test_nothing_is_written(command: list[str], tmp_path: Path) -> None:
    """Checkpoints, records and the saved model of an earlier training would have been lost."""
    found = checked(command, PROGRAMS / "sound" / "files.py", tmp_path, 0, num_ranks=2)
    assert found["same"]
    assert found["steps"] == 5
    assert found["notes"] == ["run.log(seconds=…) differs from run to run"]
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("name", SOUND)
def test_sound_programs_are_the_same(command: list[str], name: str, tmp_path: Path) -> None:
    found = checked(command, PROGRAMS / "sound" / f"{name}.py", tmp_path, 0)
    assert found["same"]
    assert found["is_double"] is (name != "bitwise")


@pytest.mark.long
@pytest.mark.parametrize("name", SOUND_EXAMPLES)
def test_examples_are_the_same(command: list[str], name: str, tmp_path: Path) -> None:
    assert checked(command, EXAMPLES / f"{name}.py", tmp_path, 0)["same"]


def test_what_cannot_be_checked_is_bad_input(command: list[str], tmp_path: Path) -> None:
    plain = tmp_path / "plain.py"
    plain.write_text("print('no run')\n")
    for words, text in [
        (["-n", "1", str(plain)], "--ranks 1: phalanx check takes at least 2"),
        (["bash", "train.sh"], "phalanx check takes program.py or -m module, not bash"),
        (["missing.py"], "there is no file missing.py"),
        ([str(plain)], "the program did not start a run by phalanx.start"),
    ]:
        done = subprocess.run(
            [*command, "check", *words],
            cwd=tmp_path,
            env=os.environ | ONE_THREAD,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert text in done.stderr
