"""How a run ended, judged by its records and by what its launcher said."""

from pathlib import Path

import pytest

from phalanx.errors import RunFailedError, UserError
from phalanx.records.files import EventWriter, rank_file, write_failure
from phalanx.records.launcher_log import LAUNCHER_LOG
from phalanx.records.running import judge, raise_failure
from phalanx.records.schema import Failure, Finished, Outcome, Started

LOGS = {
    "openmpi": "prterun noticed that process rank 1 with PID 1001 on node vm exited on\nsignal 9",
    "mpich": "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 1001 RUNNING AT vm",
    "impi": "=   BAD TERMINATION OF ONE OF YOUR PROCESSES\n=   RANK 1 PID 1001 RUNS",
}


def write_rank(folder: Path, rank: int, *, finished: bool) -> None:
    writer = EventWriter(rank_file(folder, rank))
    writer.add(
        Started(
            at_s=0.1,
            rank=rank,
            hostname="vm",
            process_id=1000 + rank,
            local_rank=rank,
            threads=1,
            startup_s=0.1,
            parameters=10,
            train_samples=10,
            validation_samples=10,
            role="worker" if rank else "server",
        )
    )
    if finished:
        writer.add(Finished(at_s=1.0, parameters_sha256="", peak_memory_bytes=1))
    writer.close()


def test_a_run_is_complete_when_every_rank_says_so(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path, rank, finished=True)
    assert judge(tmp_path, 2, 0, timeout_s=1).status == "completed"
    outcome = judge(tmp_path, 3, 0, timeout_s=1)
    assert outcome.status == "failed"
    assert "unfinished: rank 2" in (outcome.error or "")


@pytest.mark.parametrize("vendor", LOGS)
def test_the_rank_that_was_killed_is_named(tmp_path: Path, vendor: str) -> None:
    for rank in range(3):
        write_rank(tmp_path, rank, finished=False)
    (tmp_path / LAUNCHER_LOG).write_text(LOGS[vendor])
    outcome = judge(tmp_path, 3, 137, timeout_s=1)
    assert outcome.rank == 1
    assert outcome.error == (
        "rank 1, a worker, ended without a word (exit code 137): killed, perhaps for want of memory"
    )
    with pytest.raises(RunFailedError, match="rank 1, a worker, ended"):
        raise_failure(tmp_path, outcome)


def test_ranks_that_never_began_are_not_blamed_by_name(tmp_path: Path) -> None:
    (tmp_path / LAUNCHER_LOG).write_text(LOGS["openmpi"])
    outcome = judge(tmp_path, 2, 1, timeout_s=1)
    assert outcome.rank is None
    assert "MPI could not start" in (outcome.error or "")


def test_ranks_that_fell_silent(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, finished=True)
    assert judge(tmp_path, 2, None, timeout_s=5).error == "no progress for 5 s; unfinished: rank 1"


@pytest.mark.parametrize(("mendable", "kind"), [(True, UserError), (False, RunFailedError)])
def test_the_first_error_decides(tmp_path: Path, mendable: bool, kind: type[Exception]) -> None:
    write_failure(tmp_path, Failure(rank=1, mendable=mendable, message="so it is", traceback=""))
    outcome = judge(tmp_path, 2, 1, timeout_s=1)
    assert outcome == Outcome(status="failed", error="so it is", rank=1)
    with pytest.raises(kind, match="so it is"):
        raise_failure(tmp_path, outcome)


def test_an_error_that_no_rank_could_write_down_is_told(tmp_path: Path) -> None:
    """A rank could not import what it needed. The study said that it was killed, perhaps for want
    of memory; the error stood in the launcher's log, to which nobody was sent."""
    (tmp_path / LAUNCHER_LOG).write_text(
        "a warning of something else\n"
        "Traceback (most recent call last):\n"
        '  File "rank.py", line 1, in <module>\n'
        "    from a.b import c\n"
        "ImportError: cannot import name 'c' from 'a.b'\n"
        "prterun has exited due to process rank 0\n"
    )
    error = judge(tmp_path, 2, 1, timeout_s=1).error or ""
    assert error.endswith("error in launcher.log: ImportError: cannot import name 'c' from 'a.b'")
    (tmp_path / LAUNCHER_LOG).write_text(LOGS["openmpi"])
    assert "Killed, perhaps for want of memory" in (
        judge(tmp_path, 2, 137, timeout_s=1).error or ""
    )
