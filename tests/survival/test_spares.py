"""Spares take the places of ranks that die, to the bits of one undisturbed process."""

import json
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.jobs.survival import check_spares, ranks_beside
from phalanx.parallel.places import DIVIDED, WAITING, computing
from phalanx.records.events import FinishedEvent, ReplacedEvent, StepEvent
from phalanx.records.files import rank_file, read_events
from phalanx.records.rank_texts import replaced_text
from phalanx.report.folder import read_folder
from phalanx.run.fault_schedule import fault_schedule, parse_injections
from tests.conftest import long
from tests.survival.deaths import MOMENTS, Death
from tests.survival.test_moments import MOST_RESTARTS
from tests.survival.trainings import Trained, miscounted, train, train_alone

RANKS = 3
OF_SPARES = ("waiting", "receiving", "received")
OF_THE_FIRST = ("sending", "sent")

needs_openmpi = pytest.mark.usefixtures("openmpi")


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    alone = train_alone(tmp_path_factory.mktemp("truth"))
    assert miscounted(alone.ledgers[0]) == []
    return alone


def check(
    command: list[str],
    folder: Path,
    truth: Trained,
    deaths: Sequence[Death],
    spares: int,
    restarts: int = 0,
) -> Trained:
    """Train on `RANKS` ranks and spares, of which some die, and compare the rest with the truth.

    restarts: at most, where Open MPI crashes in ranks that hear of a death in a recovery."""
    ran = train(command, folder, deaths, ranks=RANKS, spares=spares, restarts=restarts)
    assert ran.code == 0, ran.said
    run = json.loads((folder / "logs" / "run.json").read_text())
    outcome, restarts = run["outcome"], len(run.get("restarts") or [])
    assert outcome["status"] == "completed", outcome
    assert set(outcome["lost"]) <= set(ran.killed) or restarts, outcome
    assert set(range(RANKS + spares)) - set(ran.killed) <= set(ran.results), ran.said
    for rank, result in ran.results.items():
        whole = {key: truth.results[0][key] for key in result}
        assert result == whole and (len(result) == 3 or restarts), (rank, ran.said)
    right = {step: row for _, step, row in truth.ledgers[0]}
    for rank, ledger in ran.ledgers.items():
        assert not [step for _, step, row in ledger if row != right[step]], rank
    assert {step for ledger in ran.ledgers.values() for _, step, _ in ledger} == set(right)
    mapped = [name for path in folder.glob("mapped-*") for name in path.read_text().split()]
    assert not [name for name in mapped if Path(name).exists()]
    assert read_folder(folder / "logs").runs
    return ran


def replacements(folder: Path, rank: int) -> list[tuple[list[int], list[int]]]:
    """Return who took whose places, as a rank has recorded it."""
    events = read_events(rank_file(folder / "logs", rank))
    return [(event.lost, event.spares) for event in events if isinstance(event, ReplacedEvent)]


@pytest.mark.mpi
@needs_openmpi
def test_two_deaths_of_which_one_is_rank_0(
    command: list[str], tmp_path: Path, truth: Trained
) -> None:
    deaths = [Death(1, "batch", before=9), Death(0, "optimizer", before=20)]
    check(command, tmp_path, truth, deaths, spares=2)
    said = (tmp_path / "logs" / "rank-0.log").read_text()
    assert "rank 1 died: rank 3, a spare, took its place: 3 ranks continued after" in said
    assert replacements(tmp_path, 2) == [([1], [3]), ([0], [4])]
    assert replacements(tmp_path, 4) == [([0], [4])]
    events = list(read_events(rank_file(tmp_path / "logs", 4)))
    steps = [event.step for event in events if isinstance(event, StepEvent)]
    assert steps == list(range(steps[0], 36)) and 20 <= steps[0] <= 22
    assert any(isinstance(event, FinishedEvent) and event.certificate for event in events)


@pytest.mark.mpi
@needs_openmpi
@pytest.mark.parametrize(
    ("spares", "deaths"),
    [
        (  # the next spare comes; who has sent the state is lost with it; the last one takes over
            3,
            [
                Death(1, "batch", before=9),
                Death(3, "receiving", before=0),
                Death(0, "sent", before=1),
            ],
        ),
        long(2, [Death(3, "waiting", before=0, after_s=0.2), Death(1, "batch", before=9)]),
        long(1, [Death(2, "batch", before=9), Death(3, "received", before=0)]),
        long(1, [Death(0, "batch", before=9), Death(1, "optimizer", before=20)]),
        long(2, [Death(2, "batch", before=9), Death(0, "sending", before=0)]),
        long(  # rank 0 is ahead of rank 1
            2, [Death(2, "summed", before=12, after_s=0.2), Death(1, "missed", 12, after_s=0.4)]
        ),
        long(2, [Death(2, "batch", before=9), Death(0, "recovery", before=0)]),
        long(2, [Death(2, "evaluation", before=9), Death(0, "checkpoint", before=9)]),
        (1, [Death(2, "evaluation", before=31)]),  # of the last epoch but one
        long(2, []),
    ],
)
def test_same_bits(
    command: list[str], tmp_path: Path, truth: Trained, spares: int, deaths: list[Death]
) -> None:
    ran = check(command, tmp_path, truth, deaths, spares)
    assert set(ran.killed) == {death.rank for death in deaths if death.moment != "missed"}


@pytest.mark.mpi
@needs_openmpi
@pytest.mark.long
@pytest.mark.parametrize("seed", range(3000, 3040))
def test_same_bits_through_random_deaths(
    command: list[str], tmp_path: Path, truth: Trained, seed: int
) -> None:
    """One or two of those that compute, and as many others."""
    draw = random.Random(seed)
    spares = 1 + draw.randrange(3)
    of_ranks = [name for name in MOMENTS if name != "end"] + list(OF_THE_FIRST)
    victims = draw.sample(range(RANKS), 1 + draw.randrange(2))
    deaths = [_drawn(draw, rank, of_ranks) for rank in victims]
    for rank in draw.sample(range(RANKS, RANKS + spares), draw.randrange(spares + 1)):
        deaths.append(_drawn(draw, rank, [*OF_SPARES, *of_ranks]))
    check(command, tmp_path, truth, deaths, spares, restarts=MOST_RESTARTS)


def _drawn(draw: random.Random, rank: int, moments: Sequence[str]) -> Death:
    moment = draw.choice(moments)
    before = draw.randrange(MOMENTS.get(moment, 1))
    return Death(rank, moment, before, draw.choice([0.0, draw.uniform(0, 0.3)]))


def test_ranks_that_compute() -> None:
    places = [True, True, False, False]
    assert computing([7, 7, 7, 6], places) == [0, 1, 2, 3], "before the spares wait"
    assert computing([7, 7, WAITING, 7], places) == [0, 1], "one of them waits already"
    assert computing([7, DIVIDED + 8, 7, 7], places) == [0, 1], "one has gone on without them"
    assert computing([DIVIDED + 8, DIVIDED + 8, WAITING, DIVIDED + 7], places) == [0, 1, 3]
    assert computing([WAITING, WAITING], [False, False]) == []


def test_faults_strike_ranks_that_compute() -> None:
    faults = parse_injections(["kill:1:5"])
    alone = [fault.rank for fault in fault_schedule(faults, 3)]
    assert len(alone) == 2
    struck = [fault.rank for fault in fault_schedule(faults, 3, spares=2)]
    assert len(struck) == len(set(struck)) == 4 and struck[0] == alone[0] < 3
    pauses = fault_schedule(parse_injections(["stop:1:5:2"]), 3, spares=2)
    assert {fault.rank for fault in islice(pauses, 50)} == {0, 1, 2}


def test_replacements_in_words() -> None:
    def text(lost: list[int], spares: list[int]) -> str:
        event = ReplacedEvent(at_s=0.0, step=3, lost=lost, spares=spares, seconds=0.21)
        return replaced_text(event, 4)

    assert text([1], [4]) == (
        "rank 1 died: rank 4, a spare, took its place: 4 ranks continued after 210 ms"
    )
    assert text([0, 1], [4, 5]) == (
        "ranks 0, 1 died: ranks 4, 5, spares, took their places: 4 ranks continued after 210 ms"
    )
    assert "rank 4, a spare, took 1 of their places" in text([0, 1], [4])


@pytest.mark.parametrize(
    ("spares", "ranks", "survive", "words"),
    [
        (-1, 4, True, "--spares -1 must be at least 0"),
        (1, 4, False, "add --survive, or leave --spares out"),
        (1, 1, True, "start at least 2"),
    ],
)
def test_spares_without_a_use_are_refused(
    spares: int, ranks: int, survive: bool, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        check_spares(spares, ranks, survive=survive)


def test_spares_are_among_the_slots_of_the_hosts() -> None:
    assert ranks_beside(2, 6) == 4
    with pytest.raises(UserError, match="the hosts have 2 slots, which leaves no computing rank"):
        ranks_beside(2, 2)
