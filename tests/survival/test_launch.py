"""`phalanx launch --survive`, and what it says of deaths and failures."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.jobs.rank_notes import end_file
from phalanx.records.files import read_run, record_file
from phalanx.records.schema import Run
from tests.conftest import ONE_THREAD, PATIENCE, forked_phalanx, long

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]
PROGRAMS = Path(__file__).parent / "programs"


def launch(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [*forked_phalanx(), "launch", "--survive", "--threads", "1"]
    options = ["--log-dir", str(folder / "logs"), *map(str, words)]
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        timeout=90 * PATIENCE,
        check=False,
        env={**os.environ, **ONE_THREAD},
    )


def test_a_run_that_goes_on_without_its_dead_has_ended_well(tmp_path: Path) -> None:
    words = ("memory", 11, 2, 0.6, tmp_path)
    done = launch(tmp_path, "-n", 4, PROGRAMS / "all_reduces.py", *words)
    assert done.returncode == 0, done.stderr
    assert "phalanx: ranks 2, 3 died; the other ranks continued to the end\n" in done.stderr


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
    assert "rank 2 failed: ArithmeticError: rank 1 of 2" in done.stderr
    outcome = read_run(tmp_path / "logs").outcome
    assert (outcome.status, outcome.rank) == ("failed", 2)


@pytest.mark.long
def test_data_that_cannot_be_divided_anew_is_refused(tmp_path: Path) -> None:
    done = launch(tmp_path, "-n", 2, PROGRAMS / "stream.py")
    assert done.returncode == 2
    assert done.stderr.count("give samples with indices") == 1
    outcome = read_run(tmp_path / "logs").outcome
    assert outcome.status == "failed" and "give samples" in (outcome.error or "")


@pytest.mark.parametrize(
    ("rank", "moment"),
    [
        (1, "import"),
        (0, "world"),
        *(long(seed % 4, f"{random.Random(seed).uniform(0, 3):.2f}") for seed in range(20)),
    ],
)
def test_a_death_while_the_program_starts_ends_it_or_is_survived(
    command: list[str], tmp_path: Path, rank: int, moment: str
) -> None:
    """The others waited for the dead in MPI's own start, in silence and without end."""
    options = ["--survive", "-n", "4", "--threads", "1", "--log-dir", str(tmp_path)]
    words = [*command, "launch", *options, command[-1], PROGRAMS / "early.py", rank, moment]
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=90 * PATIENCE, check=False
    )
    ended_at, failure = time.time(), end_file(tmp_path, rank)
    if done.returncode == 0:
        assert moment not in ("import", "world") and "came to its end" in done.stdout
        return
    assert f"rank {rank} died (SIGKILL) before all ranks were connected, " in done.stderr, (
        done.stderr
    )
    seconds = ended_at - json.loads(failure.read_text())["at_s"]
    print(f"rank {rank} died at {moment}: the job ended {seconds:.1f} s later")
    assert seconds < 5 * PATIENCE
    assert read_run_if_any(tmp_path) in (None, "failed")


def read_run_if_any(folder: Path) -> str | None:
    return read_run(folder).outcome.status if record_file(folder, Run).exists() else None


def test_components_that_return_wrong_sums_are_refused() -> None:
    command = [sys.executable, "-m", "phalanx", "launch", "--survive", "-n", "2", "x.py"]
    environment = {**os.environ, "OMPI_MCA_coll": "^hcoll"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "leaves han, portals4 in use" in done.stderr
