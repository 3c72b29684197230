"""A program of the user's as a job of `phalanx launch`."""

from pathlib import Path

import pytest

from phalanx.jobs import binding, ranks
from phalanx.jobs.binding import THREAD_POOLS
from phalanx.jobs.launch_program import Launch
from phalanx.jobs.program_job import ProgramJob
from phalanx.jobs.ranks import RankRequest
from phalanx.jobs.restarts import Attempt


@pytest.mark.parametrize("hosts", [None, "elsewhere.invalid:2"])
def test_threads_of_a_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hosts: str | None
) -> None:
    """The option, else a variable of the user's, else the cores: of this node, which ranks on
    others find themselves."""
    for name in THREAD_POOLS:
        monkeypatch.delenv(name, raising=False)
    if hosts:
        monkeypatch.setenv("PHALANX_HOSTS", hosts)
    monkeypatch.setattr(binding, "usable_cores", lambda: 8)
    monkeypatch.setattr(ranks, "find_mpi", lambda _: None)
    found: list[int | None] = []

    def run(launch: Launch, folder: Path) -> list[int]:
        found.append(launch.ranks.threads)
        return []

    monkeypatch.setattr(Launch, "run", run)

    def start(threads: int | None) -> None:
        launch = Launch(words=["train.py"], ranks=RankRequest(ranks=2, threads=threads))
        ProgramJob(launch=launch).start(Attempt(number=0, folder=tmp_path, ranks=2))

    start(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    start(None)
    start(3)
    assert found == [None if hosts else 4, 1, 3]
