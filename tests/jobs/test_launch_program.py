"""Starting a job and waiting for it: its processes, how long it may be silent, its last records."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.jobs.allocation import THIS_MACHINE, Allocation, Node
from phalanx.jobs.command import Command
from phalanx.jobs.installation import MpiInstallation
from phalanx.jobs.job import Job
from phalanx.jobs.launch_program import (
    SLOW_START_S,
    START_S,
    Launch,
    SlowStart,
    must_end,
    watch,
)
from phalanx.jobs.outcome import JobExit
from phalanx.jobs.rank_notes import RankEnd, note
from phalanx.jobs.ranks import RankRequest

MPI = MpiInstallation(vendor="other", version="1", mpiexec=Path("mpiexec"), source="path")


def launch(*, has_launcher: bool = True, silent_s: float = 40.0) -> Launch:
    ranks = RankRequest(ranks=1, threads=1, is_alone=not has_launcher)
    vars(ranks)["mpi"] = MPI if has_launcher else None
    return Launch(words=[], ranks=ranks, silent_s=silent_s)


def test_the_nodes_of_a_job_are_those_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system takes the file away at the end: what a failed job had left on other nodes was
    not ended then."""
    file = tmp_path / "nodes"
    file.write_text("192.0.2.1\n192.0.2.2\n")
    monkeypatch.setenv("PBS_NODEFILE", str(file))
    job = launch()
    assert job.ranks.nodes.has_others
    file.unlink()
    assert job.ranks.nodes.has_others


class Clock:
    """Time that passes in sleep alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class EndedAt:
    """A job that ends with exit code 1 at a time."""

    def __init__(self, clock: Clock, at_s: float) -> None:
        self.clock, self.at_s = clock, at_s

    def stopped(self) -> tuple[int, ...]:
        return ()

    def poll(self) -> int | None:
        return 1 if self.clock.now >= self.at_s else None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr("phalanx.jobs.launch_program.time", clock)
    return clock


@pytest.mark.parametrize(
    ("heard_until_s", "silent_s", "ended_s"),
    [
        (0, 40.0, START_S),  # nothing yet: imports take minutes on a busy machine
        (0, 900.0, 900.0),
        (100, 40.0, 140.0),
    ],
)
def test_ranks_that_fall_silent_are_given_up(
    clock: Clock, tmp_path: Path, heard_until_s: float, silent_s: float, ended_s: float
) -> None:
    """After 84 s it was said that there was no progress for 40 s."""
    job = EndedAt(clock, at_s=10_000)
    ending = watch(
        job,  # type: ignore[arg-type]
        launch(silent_s=silent_s),
        tmp_path,
        lambda: clock.now < heard_until_s,
    )
    assert ending == JobExit(None, silent_s=ended_s - heard_until_s)
    assert clock.now == pytest.approx(ended_s, abs=1)


def test_a_line_tells_that_no_rank_has_begun_elsewhere(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind a silent firewall a start without preflight waited 90 s without a word."""
    nodes = Allocation((Node("a.invalid", 1), Node("b.invalid", 1)), "--hosts")
    (begun := tmp_path / "begun").mkdir()
    (begun / "rank-0.log").touch()
    starts = [
        SlowStart(tmp_path, nodes),
        SlowStart(begun, nodes),
        SlowStart(tmp_path, THIS_MACHINE),
    ]
    for clock.now in (SLOW_START_S - 1, SLOW_START_S, SLOW_START_S + 1):
        for start in starts:
            start.tell()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("phalanx: no rank has started after 20 s: waiting for nodes")
    assert line.endswith("phalanx doctor --hosts a.invalid,b.invalid")


@pytest.mark.parametrize("has_launcher", [True, False])
def test_torn_records_do_not_hide_how_it_ended(
    clock: Clock, tmp_path: Path, has_launcher: bool
) -> None:
    def update() -> bool:
        if clock.now >= 5:
            raise UserError("rank-0.jsonl line 7 is not a record")
        return True

    job, started = EndedAt(clock, at_s=5), launch(has_launcher=has_launcher)
    ending = watch(job, started, tmp_path, update)  # type: ignore[arg-type]
    assert ending == JobExit(1), "not of silence"


def test_a_launcher_that_is_stopped_is_given_up_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.jobs.launch_program.FROZEN_S", 0.5)
    command = Command(words=("sh", "-c", "echo $$; kill -STOP $$; sleep 60"))
    with Job.start([command], tmp_path / "log") as job:
        ending = watch(job, launch(), tmp_path, lambda: False)
        pid, host = (tmp_path / "log").read_text().strip(), socket.gethostname()
        assert ending.exit_code is None
        assert f"the launcher (process {pid} on {host}) was stopped for 0.5 s" in ending.reason
        job.end(grace_s=0.1)


@pytest.mark.parametrize(("has_launcher", "frozen_s"), [(True, 30.0), (False, 0.2)])
def test_a_launcher_that_goes_on_and_a_rank_that_is_stopped_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_launcher: bool, frozen_s: float
) -> None:
    """Ranks have `--patience`."""
    monkeypatch.setattr("phalanx.jobs.launch_program.FROZEN_S", frozen_s)
    script = "(sleep 1; kill -CONT $$) & kill -STOP $$; exit 3"
    with Job.start([Command(words=("sh", "-c", script))], tmp_path / "log") as job:
        ending = watch(job, launch(has_launcher=has_launcher), tmp_path, lambda: False)
    assert (ending.exit_code, ending.reason) == (3, "")


def test_a_death_ends_nobody_who_survives_and_a_failure_all(tmp_path: Path) -> None:
    assert not must_end(tmp_path, survive=False)
    note(tmp_path, RankEnd(1, -9, 1.0))
    assert must_end(tmp_path, survive=False) and not must_end(tmp_path, survive=True)
    note(tmp_path, RankEnd(2, 3, 2.0))
    assert must_end(tmp_path, survive=True)
