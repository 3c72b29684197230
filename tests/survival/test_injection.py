"""Faults that are injected: told and recorded before they come, and the same bits afterwards."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from phalanx.records.events import FinishedEvent, InjectedEvent, RecoveredEvent
from phalanx.records.files import rank_file, read_events, read_run
from tests.conftest import PATIENCE

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]
OPTIONS: dict[str, Any] = {
    "width": 64, "batch_size": 64, "micro_batches": 8, "steps": 400, "train_samples": 640,
    "lr": 1e-3, "seed": 0, "dataset": "digits", "data_root": None, "timeout_s": 60,
}  # fmt: skip
PROGRAM = ("-m", "phalanx.train.disturbed_program", json.dumps(OPTIONS))


def launch(phalanx: list[str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*phalanx, "launch", "--threads", "1", *words]
    command += ["--log-dir", str(folder), *PROGRAM]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60 * PATIENCE, check=False
    )


def certified(folder: Path) -> set[str]:
    """Return the SHA-256 of all ranks that came to the end."""
    events = [event for path in folder.glob("rank-*.jsonl") for event in read_events(path)]
    return {
        event.certificate.sha256
        for event in events
        if isinstance(event, FinishedEvent) and event.certificate
    }


def test_injected_deaths_are_recorded_and_survived(command: list[str], tmp_path: Path) -> None:
    whole, disturbed = tmp_path / "whole", tmp_path / "disturbed"
    done = launch(command, whole, "-n", "1")
    assert done.returncode == 0, done.stderr
    done = launch(command, disturbed, "-n", "3", "--survive", "--inject", "kill:0.3:5")
    assert done.returncode == 0, done.stderr
    lost = read_run(disturbed).outcome.lost
    assert lost, "ranks have died"
    for rank in lost:
        (fault,) = (
            event
            for event in read_events(rank_file(disturbed, rank))
            if isinstance(event, InjectedEvent)
        )
        assert (fault.kind, fault.rank) == ("kill", rank)
        said = (disturbed / f"rank-{rank}.log").read_text()
        assert f"phalanx: injected fault: rank {rank}: SIGKILL" in said
    (survivor, *_) = set(range(3)) - set(lost)
    told = [
        event
        for event in read_events(rank_file(disturbed, survivor))
        if isinstance(event, RecoveredEvent)
    ]
    assert sorted(rank for event in told for rank in event.lost) == sorted(lost)
    assert certified(disturbed) == certified(whole)
    assert len(certified(whole)) == 1


@pytest.mark.long
def test_a_death_ends_a_run_that_survives_none(command: list[str], tmp_path: Path) -> None:
    done = launch(command, tmp_path / "run", "-n", "2", "--inject", "kill:0.3")
    assert done.returncode == 1
    assert "failed first (SIGKILL)" in done.stderr


@pytest.mark.long
def test_a_stopped_rank_goes_on(command: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = launch(command, folder, "-n", "2", "--inject", "stop:0.3:1:0.2")
    assert done.returncode == 0, done.stderr
    events = [event for path in folder.glob("rank-*.jsonl") for event in read_events(path)]
    assert any(isinstance(event, InjectedEvent) for event in events)
    assert len(certified(folder)) == 1
