"""`phalanx launch --survive`, and what it says of deaths and failures."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.records.files import read_run
from tests.conftest import long

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]
PROGRAMS = Path(__file__).parent / "programs"


def launch(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "phalanx", "launch", "--survive", "--threads", "1"]
    options = ["--log-dir", str(folder / "logs"), *map(str, words)]
    return subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=90, check=False
    )


def test_a_run_that_goes_on_without_its_dead_has_ended_well(tmp_path: Path) -> None:
    words = ("memory", 11, 2, 0.6, tmp_path)
    done = launch(tmp_path, "-n", 4, PROGRAMS / "all_reduces.py", *words)
    assert done.returncode == 0, done.stderr
    assert "phalanx: ranks 2, 3 died, and the others went on to the end\n" in done.stderr


@pytest.mark.parametrize(("how", "ended"), [long("dies", "SIGKILL"), long("fails", "exit code 1")])
def test_a_program_that_does_not_recover_fails(tmp_path: Path, how: str, ended: str) -> None:
    """Though Open MPI says that all is well, and goes on with the others."""
    done = launch(tmp_path, "-n", 3, PROGRAMS / "fails.py", how)
    assert done.returncode == 1
    assert f"rank 1 failed first ({ended})" in done.stderr


@pytest.mark.long
def test_a_rank_that_fails_after_a_recovery_has_the_number_that_it_began_with(
    tmp_path: Path,
) -> None:
    done = launch(tmp_path, "-n", 3, PROGRAMS / "fails_later.py")
    assert done.returncode == 1
    assert "rank 2 failed first (exit code 1): ArithmeticError: rank 1 of 2" in done.stderr
    outcome = read_run(tmp_path / "logs").outcome
    assert (outcome.status, outcome.rank) == ("failed", 2)


@pytest.mark.long
def test_data_that_cannot_be_divided_anew_is_refused(tmp_path: Path) -> None:
    done = launch(tmp_path, "-n", 2, PROGRAMS / "stream.py")
    assert done.returncode == 2
    assert "give samples that have numbers" in done.stdout  # of rank 0
    outcome = read_run(tmp_path / "logs").outcome
    assert outcome.status == "failed" and "give samples" in (outcome.error or "")


def test_components_that_return_wrong_sums_are_refused() -> None:
    command = [sys.executable, "-m", "phalanx", "launch", "--survive", "-n", "2", "x.py"]
    environment = {**os.environ, "OMPI_MCA_coll": "^hcoll"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "leaves han, portals4 in use" in done.stderr
