"""A run whose owner is gone is told from one that still runs."""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec
import pytest

from phalanx.errors import UserError
from phalanx.jobs.record import begin_record
from phalanx.records.files import read_bench, read_io, read_run, write_record
from phalanx.records.owner import has_died, is_alive, this_process
from phalanx.records.schema import Outcome, Owner
from phalanx.report.collectives import read_collectives
from phalanx.report.folder import DIED, read_folder
from phalanx.report.loading import read_io_rows
from tests.report.collectives.made_bench import make_bench
from tests.report.io.made_io import make_io
from tests.report.made_study import Job, make_run, run_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
PROGRAM = """
import sys
from phalanx.records.owner import this_process
import msgspec
sys.stdout.write(msgspec.json.encode(this_process()).decode())
sys.stdout.flush()
sys.stdin.read()
"""
RUN = run_of(Job("mlp", "mpi", outcome=Outcome(status="running")), "study")


def test_an_owner_is_alive_until_its_process_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = b""
        while not told.endswith(b"}"):
            told += process.stdout.read(1)
        owner = msgspec.json.decode(told, type=Owner)
        running = msgspec.structs.replace(RUN, owner=owner)
        assert owner.process_id == process.pid
        assert is_alive(owner) is True
        assert not has_died(running)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
        assert is_alive(owner) is False
        process.wait()
    assert is_alive(owner) is False
    assert has_died(running)
    completed = msgspec.structs.replace(running, outcome=Outcome(status="completed"))
    assert not has_died(completed)


def test_records_of_a_run_whose_owner_is_gone_are_those_of_an_interrupted_one(
    tmp_path: Path,
) -> None:
    gone = msgspec.structs.replace(this_process(), process_began="1")
    running = Outcome(status="running")
    run = make_run(tmp_path / "run", Job("mlp", "mpi", 2, epochs=1, outcome=running))
    bench = make_bench(tmp_path / "bench", outcome=running)
    loading = make_io(tmp_path / "io", outcome=running)
    write_record(run, msgspec.structs.replace(read_run(run), owner=gone))
    write_record(bench, msgspec.structs.replace(read_bench(bench), owner=gone))
    write_record(loading, msgspec.structs.replace(read_io(loading), owner=gone))
    runs = [*read_collectives(bench).runs, *read_io_rows(loading).runs]
    found = {(row["status"], row["error"]) for row in runs}
    found |= {(measure.status, measure.error) for measure in read_folder(run).runs}
    assert found == {("interrupted", DIED)}


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    ours = this_process()
    assert is_alive(ours) is True
    assert is_alive(msgspec.structs.replace(ours, process_began="1")) is False


@pytest.mark.parametrize("change", [{"hostname": "elsewhere"}, {"system": "b1 pid:[4]"}, None])
def test_nothing_is_claimed_of_another_machine(change: dict[str, str] | None) -> None:
    owner = change and msgspec.structs.replace(this_process(), **change)
    assert is_alive(owner) is None
    assert not has_died(msgspec.structs.replace(RUN, owner=owner))


ATTEMPTS = 50


def begin_all(folder: Path, number: int, barrier: Barrier) -> None:
    for attempt in range(ATTEMPTS):
        barrier.wait(60)
        run = msgspec.structs.replace(RUN, command=str(number), owner=this_process())
        try:
            begin_record(folder / str(attempt), run)
        except UserError as error:
            assert "already holds the records of a run" in str(error)
        else:
            (folder / f"begun-{attempt}-{number}").touch()


def test_of_several_runs_into_one_folder_one_begins(tmp_path: Path) -> None:
    """Each looked whether `run.json` was there, and then wrote it: 5 of 13 pairs both began."""
    context, count = multiprocessing.get_context("spawn"), 3
    barrier = context.Barrier(count)
    begun = [
        context.Process(target=begin_all, args=(tmp_path, number, barrier))
        for number in range(count)
    ]
    for process in begun:
        process.start()
    for process in begun:
        process.join()
        assert process.exitcode == 0
    for attempt in range(ATTEMPTS):
        (winner,) = tmp_path.glob(f"begun-{attempt}-*")
        run = read_run(tmp_path / str(attempt))
        assert run.command == winner.name[-1]
        assert run.owner is not None
        assert run.owner.process_id == begun[int(run.command)].pid
        assert is_alive(run.owner) is False
        assert [path.name for path in (tmp_path / str(attempt)).iterdir()] == ["run.json"]


def test_of_an_owner_on_another_machine_the_age_of_the_records_tells(tmp_path: Path) -> None:
    away = msgspec.structs.replace(this_process(), hostname="elsewhere")
    running = msgspec.structs.replace(RUN, owner=away, config={"timeout_s": 600})
    record = tmp_path / "rank-0.jsonl"
    record.touch()
    assert not has_died(running, tmp_path)
    now = record.stat().st_mtime
    os.utime(record, (now, now - 1100))
    assert not has_died(running, tmp_path)  # within twice the timeout
    os.utime(record, (now, now - 1300))
    assert has_died(running, tmp_path)
    assert not has_died(running)
