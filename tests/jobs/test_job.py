"""Jobs of real processes: however they end, neither a process nor a file is left."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from phalanx.jobs.command import Command
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.job import Job, termination_step
from phalanx.jobs.leftovers import abandoned_segments
from tests.jobs.starting import local_ranks, mpi_ranks, processes, ranks_of, wait_until

PARENT = Path(__file__).parent / "programs" / "parent.py"
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.alone
STARTS = pytest.mark.parametrize("ranks_by", [mpi_ranks, local_ranks], ids=["mpi", "local"])


@pytest.fixture
def marker() -> Iterator[str]:
    word = f"job-{uuid.uuid4().hex}"
    yield word
    for process in processes(word):
        process.kill()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "job.log"


@pytest.fixture
def tidy() -> Iterator[None]:
    """The machine is left as it was found: no new segment that nobody uses."""
    before = set(abandoned_segments())
    yield
    assert wait_until(lambda: set(abandoned_segments()) <= before, timeout_s=3.0)


def said(log: Path, word: str, times: int) -> bool:
    return log.exists() and log.read_text().count(word) >= times


@pytest.mark.parametrize(
    ("elapsed_s", "step"),
    [(0.0, "ask"), (4.9, "ask"), (5.0, "kill ranks"), (6.4, "kill ranks"), (6.5, "kill all")],
)
def test_pressure_grows(elapsed_s, step):
    assert termination_step(elapsed_s, grace_s=5.0) == step


@pytest.mark.mpi
def test_a_killed_launcher_s_folder_does_not_stop_the_next_with_its_process_id(
    marker: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in some thousand starts, as ids come again: "PMIx server's listener thread failed"."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    left = 'mkdir "$TMPDIR/ompi.$$" && touch "$TMPDIR/ompi.$$/pmix.$(hostname).tool" && exec "$@"'
    (launcher,) = mpi_ranks(2, marker, "finish")
    words = ("sh", "-c", left, "sh", *launcher.words)
    with Job.start([replace(launcher, words=words)], log) as job:
        assert job.wait(30.0) == 0, log.read_text()
    assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == ["job", "ompi"]


@pytest.mark.mpi
@STARTS
def test_normal_end(ranks_by, marker, log, tidy):
    with Job.start(ranks_by(2, marker, "finish"), log) as job:
        assert job.wait(30.0) == 0
    assert {"rank 0 is done", "rank 1 is done"} <= set(log.read_text().split("\n"))
    assert job.poll() == 0


@pytest.mark.mpi
def test_three_ranks_fit_on_fewer_cores(marker, log, tidy):
    with Job.start(mpi_ranks(3, marker, "finish"), log) as job:
        assert job.wait(30.0) == 0
    assert log.read_text().count("is done") == 3


@pytest.mark.mpi
def test_nothing_of_the_mpi_is_noisy(marker, log):
    with Job.start(mpi_ranks(2, marker, "finish"), log) as job:
        job.wait(30.0)
    rest = re.sub(r"up|rank [01] is done", "", log.read_text())  # Hydra may lose a line's end
    assert rest.strip() == ""


@pytest.mark.mpi
@STARTS
def test_the_others_end_when_a_rank_fails(ranks_by, marker, log, tidy):
    with Job.start(ranks_by(3, marker, "fail"), log) as job:
        assert wait_until(lambda: said(log, "rank 1 has had enough", 1) or job.poll())
        failed_at = time.monotonic()
        assert job.wait(30.0) not in (0, None)
        assert time.monotonic() - failed_at < 4.0
        assert processes(marker) == []


@pytest.mark.mpi
@STARTS
def test_ranks_that_ignore_sigterm_are_killed(ranks_by, marker, log, tidy):
    with Job.start(ranks_by(2, marker, "deaf"), log) as job:
        assert wait_until(lambda: said(log, "deaf", 2))
        began = time.monotonic()
        job.end(grace_s=0.5)
        assert time.monotonic() - began < 5.0
    assert processes(marker) == []


@pytest.mark.mpi
def test_ending_at_any_moment_of_the_start(marker, log, tidy):
    for after_s in (0.0, 0.02, 0.1, 0.3, 0.6):
        with Job.start(mpi_ranks(2, marker, "sleep"), log):
            time.sleep(after_s)
        assert processes(marker) == []


@pytest.mark.mpi
@pytest.mark.parametrize("behaviour", ["sleep", "deaf"])
@pytest.mark.parametrize("kind", ["mpi", "local"])
def test_no_rank_outlives_a_killed_parent(kind, behaviour, marker, log):
    words = [sys.executable, str(PARENT), marker, str(log), kind, behaviour]
    parent = subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert wait_until(lambda: len(ranks_of(marker)) >= 3)  # the parent counts as well
    if kind == "mpi":
        assert wait_until(lambda: said(log, "up", 2))
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not processes(marker), timeout_s=6.0)
    for segment in set(abandoned_segments()) if find_mpi(os.environ).vendor == "mpich" else ():
        segment.unlink()  # known: nobody is left to do it, `phalanx doctor` shows it


@pytest.mark.mpi
def test_a_killed_launcher_leaves_nothing(marker, log, tidy):
    with Job.start(mpi_ranks(2, marker, "deaf"), log) as job:
        assert wait_until(lambda: said(log, "deaf", 2) and job.poll() is None)
        time.sleep(0.5)  # the job has seen the ranks at work
        job.poll()
        launcher = next(p for p in processes(marker) if p not in ranks_of(marker))
        launcher.kill()
        assert job.wait(10.0) == -signal.SIGKILL
        assert processes(marker) == []
    assert list(Path("/tmp").glob(f"ompi.{launcher.pid}")) == []


@pytest.mark.mpi
def test_what_ranks_start_ends_too(log):
    marker = f"job-{uuid.uuid4().hex}"
    daemon = f"import time; time.sleep(60)  # {marker}"
    shell = f"setsid {sys.executable} -c '{daemon}' & sleep 0.3"
    with Job.start([Command(words=("sh", "-c", shell))], log) as job:
        assert job.wait(10.0) == 0
    left = [p for p in psutil.process_iter(["cmdline"]) if marker in str(p.info["cmdline"])]
    assert left == []


def test_a_command_that_does_not_exist(log):
    with Job.start([Command(words=("/no/such/program",))], log) as job:
        assert job.wait(10.0) == 127
    assert "phalanx: cannot start /no/such/program: No such file" in log.read_text()


def test_an_error_in_the_block_ends_the_job(marker, log):
    with pytest.raises(KeyboardInterrupt), Job.start(local_ranks(2, marker, "sleep"), log):
        raise KeyboardInterrupt
    assert processes(marker) == []


def test_the_log_is_appended_to(marker, log):
    log.write_text("before\n")
    with Job.start(local_ranks(1, marker, "finish"), log) as job:
        job.wait(10.0)
    assert log.read_text() == "before\nrank 0 is done\n"
