"""The installed command itself, started as a user starts it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PHALANX = Path(sys.executable).with_name("phalanx")
Phalanx = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def phalanx(tmp_path: Path) -> Phalanx:
    """Runs `phalanx` with words in an empty folder, away from any MNIST of this machine."""

    def run(*words: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PHALANX), *words],
            cwd=tmp_path,
            env={**os.environ, "PHALANX_DATA": str(tmp_path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run
