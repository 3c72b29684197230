"""The installed command itself, started as a user starts it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli import forked
from tests.cli.forked import Forks
from tests.conftest import ONE_THREAD, PATIENCE

PHALANX = Path(sys.executable).with_name("phalanx")
Phalanx = Callable[..., subprocess.CompletedProcess[str]]
Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def phalanx(tmp_path: Path) -> Phalanx:
    """Runs `phalanx` with words in an empty folder, away from any MNIST of this machine."""
    return _command([str(PHALANX)], tmp_path, {})


@pytest.fixture
def forked_phalanx(tmp_path: Path, forking_python: Path) -> Phalanx:
    """Runs the same where PyTorch need not be imported anew, neither by it nor by its ranks."""
    return _command([str(forking_python), "-m", "phalanx"], tmp_path, ONE_THREAD)


def _command(command: list[str], folder: Path, environment: Mapping[str, str]) -> Phalanx:
    added = {"PHALANX_DATA": str(folder), "COLUMNS": "200", **environment}

    def run(*words: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words],
            cwd=folder,
            env={**os.environ, **added},
            capture_output=True,
            text=True,
            timeout=timeout_s * PATIENCE,
        )

    return run


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """One process that imports everything, whose forks are commands."""
    with forked.forks() as made:
        yield made


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Starts `phalanx` with words and lets it run; it is gone when the test ends."""
    yield from _started([str(PHALANX)], tmp_path, {})


@pytest.fixture
def forked_started(tmp_path: Path, command: list[str]) -> Iterator[Started]:
    """Does the same, and the ranks are forks."""
    yield from _started(command, tmp_path, ONE_THREAD)


def _started(command: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[Started]:
    processes: list[subprocess.Popen[str]] = []
    # A shell in the background has its children ignore Ctrl-C, and theirs, and so on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(*words: str, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        options["env"] = {**options.get("env", os.environ), **environment}
        process = subprocess.Popen([*command, *words], cwd=folder, text=True, **options)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()  # its ranks end with it
        process.communicate()
    signal.signal(signal.SIGINT, before)
