"""A traced run leaves one trace of all ranks, also when it fails; and what ranks did last."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from phalanx.comm.link import LINK
from phalanx.jobs.installation import find_mpi
from phalanx.records.events import StartedEvent, StepEvent
from phalanx.records.files import read_events, read_run
from phalanx.records.last_collectives import read_last_collectives
from tests.conftest import ONE_THREAD

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(200)]

SMALL = ("--dataset", "digits", "--threads", "1", "--validation-samples", "100")


def begin(command: list[str], *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **ONE_THREAD, "COLUMNS": "100"}
    return subprocess.Popen(
        [*command, *words, *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def events_of(folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    trace = json.loads((folder / "trace.json").read_bytes())
    return trace["traceEvents"], trace["otherData"]


def test_who_is_slow_is_waited_for(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("trace", "--strategy", "shared", "--ranks", "2", "--steps", "8")
    process = begin(command, *words, "--slow-rank", "1:0.02", "--run-dir", str(folder))
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert f"trace of 2 ranks: {folder}/trace.json" in output
    assert "clock error: none: all ranks read the clock of one machine" in output
    events, about = events_of(folder)
    assert about["missing ranks"] == "none"
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {name.split(" on ")[0] for name in names} == {"rank 0", "rank 1"}
    of_rank_0 = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    assert {"data", "forward", "backward", "optimizer", "evaluation"} <= {
        e["name"] for e in of_rank_0
    }
    waited = [e["dur"] for e in of_rank_0 if e["name"] == "waiting for rank 1"]
    assert len([dur for dur in waited if dur > 5_000]) >= 6, waited
    arrows = {e["ph"] for e in events if e["name"] == "came last"}
    assert arrows == {"s", "f"}
    steps = [e for e in read_events(folder / "rank-0.jsonl") if isinstance(e, StepEvent)]
    assert len(steps) == 8


@pytest.mark.parametrize("strategy", ["mpi", "zero"])
def test_short_sums_of_a_step_are_communication(
    command: list[str], tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of losses and of checks: they follow the gradients', and were the optimizer's in records."""
    folder, latency_s = tmp_path / "run", 0.05
    monkeypatch.setenv(LINK, "10Gbit/s,50ms")
    words = ("train", "--strategy", strategy, "--ranks", "2")
    words = (*words, "--train-samples", "512", "--epochs", "1")
    process = begin(command, *words, "--run-dir", str(folder))
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    steps = [e for e in read_events(folder / "rank-0.jsonl") if isinstance(e, StepEvent)]
    assert min(step.optimizer_s for step in steps) < latency_s
    assert min(step.communication_s for step in steps) > 2 * latency_s


@pytest.mark.alone  # Open MPI's launcher gives a rank 0.2 s between SIGTERM and SIGKILL
def test_a_run_that_fails_is_traced_and_tells_who_was_where(
    command: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    words = ("train", "--strategy", "shared", "--ranks", "2", "--epochs", "500", "--trace")
    process = begin(command, *words, "--train-samples", "2000", "--run-dir", str(folder))
    try:
        wait_for_steps(folder, process)
        started = next(iter(read_events(folder / "rank-1.jsonl")))
        assert isinstance(started, StartedEvent)
        os.kill(started.process_id, signal.SIGKILL)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    error = read_run(folder).outcome.error or ""
    if not read_last_collectives(folder) and find_mpi(os.environ).vendor != "openmpi":
        assert re.search("rank 1 failed first|ranks ended without a word", error)
        return  # Hydra killed rank 0 in the same moment
    last = read_last_collectives(folder)[0]
    assert {group.group for group in last.groups} >= {"parts", "world"}
    parts = next(group for group in last.groups if group.group == "parts")
    assert parts.calls[-1].name == "fused_step"
    assert "what ranks did last: " in errors
    assert "rank 1 left no record" in error, errors
    assert "rank 1 is not in the trace: it left no spans; it may have been killed" in output
    events, about = events_of(folder)
    assert "rank 1" in about["missing ranks"]
    assert {e["pid"] for e in events} == {0}
    assert any(e["name"].startswith("fused_step") for e in events)


def wait_for_steps(folder: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    path = folder / "rank-1.jsonl"
    while not (path.exists() and b'"step"' in path.read_bytes()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no step within 100 s"
        time.sleep(0.02)
