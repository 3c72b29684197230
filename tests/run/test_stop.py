"""A run that is asked to stop keeps a checkpoint, says so, and goes on as if nothing had been."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.errors import EXIT_STOPPED
from phalanx.parallel.run_group import RunGroup
from phalanx.records.files import read_run
from phalanx.run import stop
from phalanx.run.stop import StopRequest
from tests.conftest import ONE_THREAD


class Terminated(BaseException):
    """Raised by a handler of SIGTERM."""


def raise_terminated(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Terminated


raise_terminated.__module__ = "phalanx.run.failure"  # as if it were the package's own

SMALL = ("--dataset", "digits", "--train-samples", "700", "--validation-samples", "100")


@pytest.mark.mpi
@pytest.mark.timeout(200)
def test_a_stopped_run_goes_on_to_the_same_parameters(command: list[str], tmp_path: Path) -> None:
    def begin(name: str, checkpoints: str, *words: str) -> subprocess.Popen[str]:
        places = (f"--run-dir={tmp_path / name}", f"--checkpoint-dir={tmp_path / checkpoints}")
        run = ("train", "--strategy", "shared", "--ranks", "2", "--threads", "1", "--epochs", "20")
        return subprocess.Popen(
            [*command, *run, *SMALL, "--dtype", "float64", *places, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )

    process = begin("run", "c", "--slow-rank", "1:0.05")
    until = time.monotonic() + 100
    records = tmp_path / "run" / "rank-0.jsonl"
    while not (records.exists() and b'"step"' in records.read_bytes()):
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == EXIT_STOPPED, errors
    assert "as asked, with a checkpoint to resume from" in errors
    outcome = read_run(tmp_path / "run").outcome
    assert outcome.status == "interrupted" and "stopped after step" in (outcome.error or "")
    sums = []
    for name, checkpoints, words in (
        ("run", "c", ("--resume", str(tmp_path / "c"))),
        ("undisturbed", "d", ()),
    ):
        output, errors = (process := begin(name, checkpoints, *words)).communicate(timeout=100)
        assert process.returncode == 0, errors
        assert ("resuming from" in output) == (name == "run")
        sums.append((tmp_path / checkpoints / "epoch-0020" / "model.safetensors").read_bytes())
    assert sums[0] == sums[1]
    assert read_run(tmp_path / "run-2").outcome.status == "completed", (
        "beside those of its first part"
    )


@pytest.fixture
def restored() -> Iterator[None]:
    """Begin with the default effect of signals, and leave handlers as they were."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in stop.STOP_SIGNALS}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("number", stop.STOP_SIGNALS)
def test_ranks_ask_each_other_about_once_a_second(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    now = 0.0
    monkeypatch.setattr(stop.time, "perf_counter", lambda: now)
    asked: list[int] = []

    class Group(RunGroup):
        def sum(self, values):
            asked.append(step)
            return super().sum(values)

    request = StopRequest(Group())
    for step in range(1, 100):
        now = step / 10
        assert not request.agree(step)
    assert asked == list(range(1, 100, 10))
    signal.raise_signal(number)
    step = 100
    assert not request.agree(step)
    step = 101
    assert request.agree(step)
    later = StopRequest(Group())  # of the program's next run: it once heard nothing
    signal.raise_signal(number)
    assert later.agree(step, now=True)


@pytest.mark.usefixtures("restored")
def test_a_second_sigterm_has_the_effect_of_the_first_without_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that comes at once is the same: launchers send it to a process and to its group."""
    now = 0.0
    monkeypatch.setattr(stop.time, "monotonic", lambda: now)
    signal.signal(signal.SIGTERM, raise_terminated)
    request = StopRequest(RunGroup())
    signal.raise_signal(signal.SIGTERM)
    now = 0.4
    signal.raise_signal(signal.SIGTERM)
    assert request.agree(1, now=True)
    now = 0.6
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN, "more of it come with the first"
    signal.signal(signal.SIGTERM, raise_terminated)
    StopRequest(RunGroup()).close()
    with pytest.raises(Terminated):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("restored")
def test_a_program_keeps_its_own_handlers() -> None:
    heard: list[int] = []
    for number in stop.STOP_SIGNALS:
        signal.signal(number, lambda number, _: heard.append(number))
    request = StopRequest(RunGroup())
    for number in stop.STOP_SIGNALS:
        signal.raise_signal(number)
    assert heard == [*stop.STOP_SIGNALS] and not request.agree(1, now=True)


@pytest.mark.usefixtures("restored")
def test_checkpoints_by_time_are_due_when_the_last_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, is_saving = 0.0, False
    monkeypatch.setattr(stop.time, "perf_counter", lambda: now)
    request = StopRequest(RunGroup(), save_every_s=3.0, is_saving=lambda: is_saving)
    saved: list[float] = []
    for step in range(1, 200):
        now, is_saving = step / 10, 8.5 < step / 10 < 11.5
        assert not request.agree(step)
        if request.saves:
            saved.append(now)
            request.saved()
    first, second, third, *others = saved  # the third waited for the second; asked once a second
    assert 2.9 < first < 4.2 and 2.9 < second - first < 4.2 and 11.4 < third < 12.7
    assert len(others) == 2
