"""A training goes on through the deaths of ranks, to the bits of one undisturbed process."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phalanx.checkpoints.folder import readable_folders
from tests.conftest import PATIENCE
from tests.survival.test_launch import PROGRAMS, launch

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]
PROGRAM, RANKS, SECONDS = PROGRAMS / "training.py", 4, 1.5
FROZEN_S = 1.5


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of one process."""
    folder = tmp_path_factory.mktemp("truth")
    command = [sys.executable, str(PROGRAM), str(folder), "0", "0", "0"]
    subprocess.run(command, check=True, capture_output=True, timeout=60 * PATIENCE)
    return json.loads((folder / "result-0.json").read_text())


def check(
    folder: Path,
    truth: dict[str, Any],
    seed: int,
    failures: int,
    *kinds: str,
    seconds: float = SECONDS,
) -> str:
    """Train on four ranks of which some fail, compare what the others have with the truth, and
    return what was said.

    kinds: as of the program; those that do not die are killed after `FROZEN_S`.
    """
    options = ["--patience", FROZEN_S] if kinds else []
    words = [PROGRAM, folder, seed, failures, seconds, *kinds]
    done = launch(folder, *options, "-n", RANKS, *words)
    assert done.returncode == 0, done.stderr
    killed = {int(path.name.split("-")[1]) for path in folder.glob("killed-*")}
    results = {int(path.stem.split("-")[1]): path for path in folder.glob("result-*.json")}
    assert set(range(RANKS)) - killed <= set(results), done.stderr
    for rank, path in results.items():
        assert json.loads(path.read_text()) == truth, (rank, done.stderr)
    outcome = json.loads((folder / "logs" / "run.json").read_text())["outcome"]
    assert outcome["status"] == "completed", outcome
    assert set(outcome["lost"]) <= killed
    assert len(readable_folders(folder / "checkpoints")) >= 40  # one an epoch
    mapped = [name for path in folder.glob("mapped-*") for name in path.read_text().split()]
    assert not [name for name in mapped if Path(name).exists()]
    return done.stderr


@pytest.mark.long
def test_frozen_ranks_are_killed_and_those_that_go_on_in_time_are_not(
    tmp_path: Path, truth: dict[str, Any]
) -> None:
    """One rank is stopped, one is for half a second, and one computes for ever."""
    said = check(tmp_path, truth, 4, 3, "stop", "pause", "loop", seconds=0.5)
    failed = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("killed-*"))
    outcome = json.loads((tmp_path / "logs" / "run.json").read_text())["outcome"]
    assert len(failed) == 2 and outcome["lost"] == failed
    for rank in failed:
        assert (
            f"rank {rank} was killed after its peers had waited 1.5 s for it (--patience)" in said
        )
    assert not list((tmp_path / "logs").glob("waits-*"))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2000, 2050))
def test_same_bits_through_frozen_ranks(tmp_path: Path, truth: dict[str, Any], seed: int) -> None:
    drawn = random.Random(-seed)
    kinds = [drawn.choice(("kill", "stop", "pause", "loop")) for _ in range(RANKS - 1)]
    check(tmp_path, truth, seed, 1 + drawn.randrange(3), *kinds)
