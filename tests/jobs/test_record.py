"""The outcome is in the record, or the user is told that it is not."""

import resource
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.outcome import JobExit, judge
from phalanx.jobs.record import (
    COMMAND,
    closed_on_error,
    default_folder,
    end_record,
    job_command,
    this_command,
)
from phalanx.records.failures import EXIT_UNWRITABLE, failure_of
from phalanx.records.files import read_failure, read_run, write_failure, write_record
from phalanx.records.schema import Outcome, Run
from tests.report.made_study import Job, run_of

RUNNING = run_of(Job("mlp", "mpi", outcome=Outcome(status="running")), "study")
FAILED = Outcome(status="failed", error="it was so", rank=1)


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond it: writing fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_no_new_file_has_room_the_old_one_is_overwritten(tmp_path: Path) -> None:
    write_record(tmp_path, RUNNING)
    num_bytes = (tmp_path / "run.json").stat().st_size
    with file_size_limit(num_bytes):
        end_record(tmp_path, Run, FAILED)
    assert read_run(tmp_path).outcome == FAILED
    assert read_run(tmp_path).ended_at
    assert (tmp_path / "run.json").stat().st_size == num_bytes
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_records_that_cannot_be_written_at_all_are_said_with_the_outcome(tmp_path: Path) -> None:
    write_record(tmp_path, RUNNING)
    with (
        file_size_limit(0),
        pytest.raises(RunFailedError, match=r"written: .*run.json: File too.* failed: it was so$"),
    ):
        end_record(tmp_path, Run, FAILED)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunFailedError, match=r"written: .*run.json is damaged.* completed$"):
        end_record(tmp_path, Run, Outcome(status="completed"))
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunFailedError, match="does not exist"):
        end_record(tmp_path, Run, Outcome(status="completed"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt(), Outcome(status="interrupted")),
        (UserError("mend it"), Outcome(status="failed", error="mend it")),
        (RunFailedError("first\nsecond"), Outcome(status="failed", error="first")),
        (MemoryError(), Outcome(status="failed", error="MemoryError")),
    ],
)
def test_an_error_on_the_way_closes_the_record(
    tmp_path: Path, error: BaseException, expected: Outcome
) -> None:
    write_record(tmp_path, RUNNING)
    with file_size_limit(0), pytest.raises(type(error)), closed_on_error(tmp_path, Run):
        raise error  # and not the one of the record
    with pytest.raises(type(error)), closed_on_error(tmp_path, Run):
        raise error
    assert read_run(tmp_path).outcome == expected
    end_record(tmp_path, Run, FAILED)
    with pytest.raises(type(error)), closed_on_error(tmp_path, Run):
        raise error
    assert read_run(tmp_path).outcome == FAILED, "somebody has closed it before"


def test_the_first_failure_is_the_one_that_is_written(tmp_path: Path) -> None:
    for rank, is_first in ((0, True), (1, False)):
        try:
            raise ZeroDivisionError("made")
        except ZeroDivisionError as error:
            assert write_failure(tmp_path, failure_of(error, rank)) == is_first
    failure = read_failure(tmp_path)
    assert failure is not None
    assert (failure.rank, failure.message) == (0, "ZeroDivisionError: made")
    assert "Traceback" in failure.traceback


def test_a_rank_that_could_not_write_is_recognised_by_its_exit_code(tmp_path: Path) -> None:
    error = judge(tmp_path, 2, JobExit(EXIT_UNWRITABLE)).outcome.error or ""
    assert error.startswith(f"a rank could not write its records to {tmp_path} (")
    assert error.endswith("bytes are free there)")
    (tmp_path / "launcher.log").write_text("phalanx: rank 1: OSError: [Errno 28] No space left\n")
    error = judge(tmp_path, 2, JobExit(EXIT_UNWRITABLE)).outcome.error or ""
    assert error.endswith("launcher.log: rank 1: OSError: [Errno 28] No space left")


def test_jobs_of_the_same_second_have_folders_of_their_own() -> None:
    names = [default_folder("train", "mlp-mpi-2").name for _ in range(50)]
    assert len(set(names)) == len(names)
    assert names == sorted(names), "the newest is the last"


def test_a_launched_program_is_run_again_by_the_whole_command() -> None:
    """ "How to run it again" was `train.py` for what was `phalanx launch -n 2 … train.py`."""
    words = ["phalanx", "launch", "-n", "2", "--log-dir", "my logs", "train.py"]
    assert job_command({COMMAND: shlex.join(words)}) == words
    assert job_command({}) == this_command()
