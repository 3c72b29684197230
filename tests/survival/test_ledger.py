"""Every sample of every epoch counts exactly once, whoever dies when."""

from pathlib import Path

import pytest

from tests.conftest import long
from tests.survival.deaths import Death
from tests.survival.trainings import Trained, differences, miscounted, train, train_alone

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi")]

DEATHS = (
    Death(3, "batch", before=9),  # with the gradient of its first one of step 4
    Death(2, "summed", before=12, after_s=0.2),
    Death(1, "missed", before=12, after_s=0.4),  # it lives: rank 0 has this sum, and is ahead
)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train_alone(tmp_path_factory.mktemp("truth"))


def test_in_one_process(truth: Trained) -> None:
    assert miscounted(truth.ledgers[0]) == []
    assert truth.num_repeated == 0


def test_through_deaths(command: list[str], tmp_path: Path, truth: Trained) -> None:
    ran = train(command, tmp_path, DEATHS)
    assert ran.code == 0, ran.said
    assert set(ran.killed) == {2, 3}
    for rank in (0, 1):
        assert miscounted(ran.ledgers[rank]) == []
        assert ran.ledgers[rank] == truth.ledgers[0]
        assert ran.results[rank] == truth.results[0]
    assert ran.num_repeated >= 1, "what died with rank 3 was computed again, and counts once"


@pytest.mark.parametrize(
    ("mutation", "seen"),
    [
        long("counted twice", "2 times, not 1"),
        long("dropped", "0 times, not 1"),
        long("made again", "1 times, not 0"),
        long("order of the ranks", None),
    ],
)
def test_mutations_are_seen(
    command: list[str], tmp_path: Path, truth: Trained, mutation: str, seen: str | None
) -> None:
    """seen: in the ledger; None: it counts right, and sums in another order."""
    ran = train(command, tmp_path, DEATHS, mutation)
    if seen is None:
        assert ran.code == 0, ran.said
        assert [miscounted(ran.ledgers[rank]) for rank in (0, 1)] == [[], []]
        assert ran.results[0]["sha256"] != truth.results[0]["sha256"]
    else:
        found = differences(ran.ledgers[1], truth.ledgers[0])
        assert any(seen in line for line in found), (found, ran.said)


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "mutation"),
    [("shared", "left half done"), ("zero", "updated by the owner alone")],
)
def test_an_update_that_a_death_has_cut_short_is_made(
    command: list[str], tmp_path: Path, truth: Trained, strategy: str, mutation: str
) -> None:
    """The owner of a shard dies before it updates it, when the other holder may have done so."""
    deaths = [Death(2, "optimizer", before=12), Death(0, "optimizer", before=20)]
    found = []
    for words in ((strategy,), (strategy, mutation)):
        ran = train(command, tmp_path / words[-1], deaths, *words)
        assert ran.code == 0, ran.said
        assert set(ran.killed) == {0, 2}
        found.append({ran.results[rank]["sha256"] for rank in (1, 3)})
    assert found[0] == {truth.results[0]["sha256"]}
    assert found[1].isdisjoint(found[0])
