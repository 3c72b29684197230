"""Ranks are killed at random moments, and the others go on in a world of their own."""

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job
from phalanx.launch.leftovers import processes_with
from tests.conftest import PATIENCE

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]

PROGRAM = Path(__file__).parent / "programs" / "all_reduces.py"
RANKS = 4
NOTICE_S, RECOVERY_S, END_S = 1.0, 2.0, 0.1
"""Bounds on any machine; docs/survival.md has what is measured on a quiet one."""


class Run(NamedTuple):
    """Records of a run by original rank."""

    killed: dict[int, float]
    survivors: dict[int, dict[str, Any]]

    def seconds_to_notice(self) -> list[float]:
        """From the last of the deaths that a rank recovered from to its notice, where that was not
        in a recovery already."""
        recoveries = [each for record in self.survivors.values() for each in record["recoveries"]]
        return [
            recovery["noticed"] - max(self.killed[rank] for rank in recovery["lost"])
            for recovery in recoveries
            if recovery["attempts"] == 1
            and max(self.killed[rank] for rank in recovery["lost"]) < recovery["noticed"]
        ]

    def seconds_to_recover(self) -> list[float]:
        """From notice to the new world, of recoveries in which nobody died."""
        return [
            recovery["recovered"] - recovery["noticed"]
            for record in self.survivors.values()
            for recovery in record["recoveries"]
            if recovery["attempts"] == 1
        ]


def run(folder: Path, how: str, seed: int, kills: int, seconds: float) -> Run:
    """Run the program; check that nothing is left and that survivors came to a good end."""
    words = [sys.executable, str(PROGRAM), how, str(seed), str(kills), str(seconds), str(folder)]
    mpi = find_mpi(os.environ)
    command = mpi_job(mpi, RANKS, words, cores=usable_cores(), environ=os.environ, survive=True)
    with Job.start([command], folder / "log") as job:
        code = job.wait(60 * PATIENCE)
    said = (folder / "log").read_text()
    assert code == 0, f"exit code {code}\n{said}"
    assert not processes_with(job.token)
    killed = {number(path): float(path.read_text()) for path in folder.glob("killed-*")}
    records = {number(path): json.loads(path.read_text()) for path in folder.glob("survivor-*")}
    assert set(records) == set(range(RANKS)) - set(killed), said
    for path in folder.glob("mapped-*"):
        left = [name for name in path.read_text().split() if Path(name).exists()]
        assert not left, f"rank {number(path)} left {left}"
    return Run(killed, records)


def number(path: Path) -> int:
    return int(path.stem.split("-")[1])


def check(ran: Run) -> None:
    for record in ran.survivors.values():
        lost = [rank for recovery in record["recoveries"] for rank in recovery["lost"]]
        # Who dies after its last step is missed by nobody.
        missed = set(ran.killed) - set(lost)
        assert set(lost) <= set(ran.killed) and len(set(lost)) == len(lost)
        assert set(record["ranks"]) == set(ran.survivors) | missed
        assert all(ran.killed[rank] > record["ended"] - END_S * PATIENCE for rank in missed)
    assert len({record["steps"] for record in ran.survivors.values()}) == 1
    assert max(ran.seconds_to_notice(), default=0) < NOTICE_S * PATIENCE
    assert max(ran.seconds_to_recover(), default=0) < RECOVERY_S * PATIENCE


@pytest.mark.parametrize(
    ("how", "seed", "kills"), [("memory", 4, 1), ("messages", 2, 2), ("memory", 1, 3)]
)
def test_survivors_go_on(tmp_path: Path, how: str, seed: int, kills: int) -> None:
    check(run(tmp_path, how, seed, kills, seconds=0.6))


@pytest.mark.long
@pytest.mark.parametrize("how", ["memory", "messages"])
@pytest.mark.parametrize("seed", range(100, 130))
def test_survivors_go_on_after_random_deaths(tmp_path: Path, how: str, seed: int) -> None:
    ran = run(tmp_path, how, seed, 1 + seed % 3, seconds=1.0)
    check(ran)
    for name, seconds in (
        ("notice", ran.seconds_to_notice()),
        ("recover", ran.seconds_to_recover()),
    ):
        if seconds:
            middle, most = statistics.median(seconds), max(seconds)
            print(f"{how} seed {seed}: {name} {1e3 * middle:.1f} ms, at most {1e3 * most:.1f}")
