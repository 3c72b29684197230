"""Ranks are killed at random moments, and the others go on in a world of their own."""

import os
import statistics
import sys
from pathlib import Path

import pytest

from phalanx.jobs.command import mpi_job
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.job import Job
from phalanx.jobs.leftovers import processes_with
from tests.conftest import PATIENCE
from tests.survival.records import Run, check, number, read_run

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]

PROGRAM = Path(__file__).parent / "programs" / "all_reduces.py"
RANKS = 4
NOTICE_S = 1.0
"""On any machine; docs/survival.md has what is measured."""


def launch(folder: Path, ranks: int, words: list[str]) -> str:
    """Run a program; return what it said. Check that nothing is left."""
    mpi = find_mpi(os.environ)
    words = [sys.executable, *words]
    command = mpi_job(mpi, ranks, words, environ=os.environ, survive=True)
    with Job.start([command], folder / "log") as job:
        code = job.wait(60 * PATIENCE)
    said = (folder / "log").read_text()
    assert code == 0, f"exit code {code}\n{said}"
    assert not processes_with(job.token)
    return said


def run(folder: Path, how: str, seed: int, kills: int, seconds: float) -> Run:
    """Run the all-reduces; check that survivors came to a good end."""
    said = launch(
        folder, RANKS, [str(PROGRAM), how, str(seed), str(kills), str(seconds), str(folder)]
    )
    ran = read_run(folder)
    assert set(ran.survivors) == set(range(RANKS)) - set(ran.killed), said
    for path in folder.glob("mapped-*"):
        left = [name for name in path.read_text().split() if Path(name).exists()]
        assert not left, f"rank {number(path)} left {left}"
    check(ran, notice_s=NOTICE_S)
    return ran


@pytest.mark.parametrize(("how", "seed", "kills"), [("memory", 6, 1), ("messages", 11, 2)])
def test_survivors_go_on(tmp_path: Path, how: str, seed: int, kills: int) -> None:
    run(tmp_path, how, seed, kills, seconds=0.6)


def test_a_rank_that_waits_for_word_is_woken_by_it_and_by_a_death(tmp_path: Path) -> None:
    launch(tmp_path, 3, [str(PROGRAM.with_name("waiting.py")), str(tmp_path)])
    assert (tmp_path / "word").read_text() == "come True"
    assert [(tmp_path / f"left-{rank}").read_text() for rank in (0, 2)] == ["True", "True"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["memory", "messages"])
@pytest.mark.parametrize("seed", range(100, 130))
def test_survivors_go_on_after_random_deaths(tmp_path: Path, how: str, seed: int) -> None:
    ran = run(tmp_path, how, seed, 1 + seed % 3, seconds=1.0)
    for name, seconds in (
        ("notice", ran.seconds_to_notice()),
        ("recover", ran.seconds_to_recover()),
    ):
        if seconds:
            middle, most = statistics.median(seconds), max(seconds)
            print(f"{how} seed {seed}: {name} {1e3 * middle:.1f} ms, at most {1e3 * most:.1f}")
