"""Worker processes of a rank import its program, and MPI must not start in them as that rank."""

import os
from pathlib import Path

import pytest

from phalanx.jobs.worker_environment import worker_environment
from tests.conftest import Ranks

PROGRAM = """
import multiprocessing, os, sys
from mpi4py import MPI
from phalanx.jobs.worker_environment import worker_environment

def work(queue):
    queue.put(MPI.COMM_WORLD.Get_size())

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    queue = context.SimpleQueue()
    for _ in range(2):
        with worker_environment():
            child = context.Process(target=work, args=(queue,), daemon=True)
            child.start()
        child.join(60)
        print("child", child.exitcode, queue.get() if child.exitcode == 0 else "hangs", flush=True)
    MPI.COMM_WORLD.Barrier()
"""


@pytest.mark.mpi
def test_workers_of_a_program_that_imports_mpi(ranks: Ranks, tmp_path: Path) -> None:
    """The second epoch's workers hung, and then the ranks crashed: MPI began in them, by the
    variables of the launcher, as the rank whose workers they were."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output = ranks.mpi(2, program)
    assert output.count("child 0 1") == 4, output


def test_the_variables_of_the_rank_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
    before = dict(os.environ)
    with worker_environment():
        assert not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"} & os.environ.keys()
        assert "SLURM_PROCID" not in os.environ and os.environ["SLURM_JOB_ID"] == "1"
    assert dict(os.environ) == before
