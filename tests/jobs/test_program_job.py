"""A program of the user's as a job of `phalanx launch`."""

import io
from pathlib import Path
from typing import Any

import pytest

from phalanx.jobs import program_job
from phalanx.jobs.binding import THREAD_POOLS
from phalanx.jobs.program_job import ProgramJob
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
    monkeypatch.setattr(program_job, "usable_cores", lambda: 8)
    found: list[int | None] = []

    def launch(*_: object, threads: int | None, **others: Any) -> list[int]:
        found.append(threads)
        return []

    monkeypatch.setattr(program_job, "launch_program", launch)

    def start(threads: int | None) -> None:
        job = ProgramJob(
            words=["train.py"],
            threads=threads,
            mpi=None,
            output=io.BytesIO(),
            environment=lambda _: {},
        )
        job.start(Attempt(number=0, folder=tmp_path, ranks=2))

    start(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    start(None)
    start(3)
    assert found == [None if hosts else 4, 1, 3]
