"""A training survives deaths in each of its moments, with the bits of one undisturbed process."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.checkpoints.folder import readable_folders
from tests.survival.deaths import MOMENTS, drawn
from tests.survival.trainings import EPOCHS, RANKS, Trained, train, train_alone

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_alone(tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="module")
def moments() -> Iterator[Counter[str]]:
    """Moments in which ranks died, which are shown at the end."""
    found: Counter[str] = Counter()
    yield found
    shown = ", ".join(f"{moment} {found[moment]}" for moment in MOMENTS)
    print(f"\ndeaths by moment: {shown}; {found['repeated']} micro-batches computed again")


def check(
    command: list[str], folder: Path, truth: Trained, seed: int, moments: Counter[str]
) -> None:
    """Train on four ranks of which some die, and compare what all have with the truth."""
    ran = train(command, folder, drawn(seed, RANKS))
    assert ran.code == 0, ran.said
    moments.update(ran.killed.values())
    moments["repeated"] += ran.num_repeated
    assert set(range(RANKS)) - set(ran.killed) <= set(ran.results), ran.said
    for rank, result in ran.results.items():
        assert result == truth.results[0], (rank, ran.said)
        assert ran.ledgers[rank] == truth.ledgers[0], rank
    for rank in ran.killed:  # until they died
        assert ran.ledgers[rank] == truth.ledgers[0][: len(ran.ledgers[rank])], rank
    assert set(ran.computed) == set(truth.computed)
    outcome = json.loads((folder / "logs" / "run.json").read_text())["outcome"]
    assert outcome["status"] == "completed", outcome
    assert set(outcome["lost"]) <= set(ran.killed)
    assert len(readable_folders(folder / "checkpoints")) >= EPOCHS
    mapped = [name for path in folder.glob("mapped-*") for name in path.read_text().split()]
    assert not [name for name in mapped if Path(name).exists()]


@pytest.mark.parametrize("seed", [1, 5])
def test_same_bits_through_deaths(
    command: list[str], tmp_path: Path, truth: Trained, seed: int, moments: Counter[str]
) -> None:
    check(command, tmp_path, truth, seed, moments)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_same_bits_through_random_deaths(
    command: list[str], tmp_path: Path, truth: Trained, seed: int, moments: Counter[str]
) -> None:
    check(command, tmp_path, truth, seed, moments)
