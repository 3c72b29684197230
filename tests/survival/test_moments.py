"""A training survives deaths in each of its moments, with the bits of one undisturbed process."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from phalanx.checkpoints.folder import readable_folders
from tests.conftest import long
from tests.survival.deaths import MOMENTS, Death, drawn
from tests.survival.trainings import EPOCHS, RANKS, Trained, miscounted, train, train_alone

MOST_RESTARTS = 2
"""Open MPI 5.0.11 may crash in ranks that hear of a death while they make a communicator."""

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    alone = train_alone(tmp_path_factory.mktemp("truth"))
    assert miscounted(alone.ledgers[0]) == []
    return alone


@pytest.fixture(scope="module")
def moments() -> Iterator[Counter[str]]:
    """Moments in which ranks died, which are shown at the end."""
    found: Counter[str] = Counter()
    yield found
    shown = ", ".join(f"{moment} {found[moment]}" for moment in MOMENTS)
    print(f"\ndeaths by moment: {shown}")
    print(f"micro-batches computed again: {found['repeated']}; restarts: {found['restarts']}")


def check(
    command: list[str],
    folder: Path,
    truth: Trained,
    deaths: Sequence[Death],
    moments: Counter[str],
    *words: str,
) -> None:
    """Train on four ranks of which some die, and compare what all have with the truth."""
    ran = train(command, folder, deaths, *words, restarts=MOST_RESTARTS)
    assert ran.code == 0, ran.said
    run = json.loads((folder / "logs" / "run.json").read_text())
    restarts = run.get("restarts") or []
    moments.update(ran.killed.values())
    moments.update(repeated=ran.num_repeated, restarts=len(restarts))
    assert set(range(RANKS)) - set(ran.killed) <= set(ran.results), ran.said
    right = {step: row for _, step, row in truth.ledgers[0]}
    for rank, result in ran.results.items():
        assert result == {key: truth.results[0][key] for key in result}, (rank, ran.said)
    for rank, ledger in ran.ledgers.items():  # of the dead, too
        assert not [step for _, step, row in ledger if row != right[step]], rank
        assert len(ledger) == len(right) or rank in ran.killed or restarts or words
    assert {step for ledger in ran.ledgers.values() for _, step, _ in ledger} == set(right)
    assert set(ran.computed) == set(truth.computed)
    if "end" not in ran.killed.values():  # where rank 0 may be about to print it
        assert ran.shown.count("bitwise: SHA-256 ") == 1, ran.shown
    assert run["outcome"]["status"] == "completed", run["outcome"]
    assert set(run["outcome"]["lost"]) <= set(ran.killed) or restarts
    assert len(readable_folders(folder / "checkpoints")) >= EPOCHS
    mapped = [name for path in folder.glob("mapped-*") for name in path.read_text().split()]
    assert not [name for name in mapped if Path(name).exists()]


@pytest.mark.long
def test_same_bits_after_the_death_of_all(
    command: list[str], tmp_path: Path, truth: Trained, moments: Counter[str]
) -> None:
    before = moments["restarts"]
    deaths = [Death(rank, "sum", before=12) for rank in range(RANKS)]
    check(command, tmp_path, truth, deaths, moments)
    assert moments["restarts"] == before + 1


@pytest.mark.parametrize("seed", [1, 5])
def test_same_bits_through_deaths(
    command: list[str], tmp_path: Path, truth: Trained, seed: int, moments: Counter[str]
) -> None:
    check(command, tmp_path, truth, drawn(seed, RANKS), moments)


@pytest.mark.parametrize(
    ("strategy", "seed"),
    [
        *(("zero", 3), ("shared", 3)),
        *(long(name, seed) for name in ("zero", "shared") for seed in range(4000, 4050)),
    ],
)
def test_same_bits_where_the_state_is_divided(
    command: list[str],
    tmp_path: Path,
    truth: Trained,
    strategy: str,
    seed: int,
    moments: Counter[str],
) -> None:
    """Restarts come after the deaths of both ranks that hold a shard, too."""
    check(command, tmp_path, truth, drawn(seed, RANKS), moments, strategy)


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    return cache(lambda *words: train_alone(tmp_path_factory.mktemp("truth"), *words))


@pytest.mark.parametrize(
    ("words", "seed"),
    [
        ("several", 5),
        *(
            long(f"{kind} readers", seed)
            for seed in range(5000, 5050)
            for kind in ("several", "alternating")
        ),
    ],
)
def test_same_bits_with_two_optimizers(
    command: list[str],
    tmp_path: Path,
    truths: Callable[..., Trained],
    words: str,
    seed: int,
    moments: Counter[str],
) -> None:
    """The first death ended such a run: gradients that had gone into the sum with the step's last
    micro-batch were missed as cleared by the program, once the step went on."""
    of_program = words.split()
    check(command, tmp_path, truths(*of_program), drawn(seed, RANKS), moments, *of_program)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_same_bits_through_random_deaths(
    command: list[str], tmp_path: Path, truth: Trained, seed: int, moments: Counter[str]
) -> None:
    check(command, tmp_path, truth, drawn(seed, RANKS), moments)
