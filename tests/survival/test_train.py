"""`phalanx train --survive` goes on through deaths of ranks, to the bits of one undisturbed run."""

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from phalanx.checkpoints.find import find_checkpoint
from phalanx.records.events import (
    EpochEvent,
    Event,
    FinishedEvent,
    RebalancedEvent,
    RecoveredEvent,
    StepEvent,
    SummaryEvent,
)
from phalanx.records.files import rank_file, read_events, read_run
from phalanx.report.bitwise import judge, read_bitwise_run
from phalanx.report.folder import read_folder
from tests.conftest import ONE_THREAD, PATIENCE, long
from tests.survival.test_launch import PROGRAMS

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("openmpi"), pytest.mark.timeout(300)]
RANKS, EPOCHS, STEPS = 4, 9, 10
SECONDS = 1.5
"""Of the steps on a quiet machine, about."""
WORDS = (
    *("train", "--model", f"{PROGRAMS / 'mortal_model.py'}:make", "--dataset", "digits"),
    *("--train-samples", "305", "--validation-samples", "61", "--batch-size", "32"),
    *("--epochs", str(EPOCHS), "--timeout-s", "60"),
)
Death = tuple[int, str, Any]


def train(
    command: list[str], folder: Path, *words: str, deaths: Sequence[Death] = ()
) -> subprocess.CompletedProcess[str]:
    saving = ("--run-dir", str(folder / "run"), "--checkpoint-dir", str(folder / "saved"))
    return subprocess.run(
        [*command, *WORDS, *saving, "--checkpoint-steps", "4", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **ONE_THREAD, "DEATHS": json.dumps(deaths)},
        timeout=120 * PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory, command: list[str]) -> Path:
    """Return the folder of one process that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("truth")
    done = train(command, folder, "--bitwise")
    assert done.returncode == 0, done.stderr
    return folder


def events_of(folder: Path, ranks: int) -> list[list[Event]]:
    return [list(read_events(rank_file(folder, rank))) for rank in range(ranks)]


def certificates(ranks: Sequence[Sequence[Event]]) -> list[str]:
    """Return the hashes of the ranks that came to the end."""
    ends = [event for events in ranks for event in events if isinstance(event, FinishedEvent)]
    return [event.certificate.sha256 for event in ends if event.certificate is not None]


def losses(ranks: Sequence[Sequence[Event]]) -> list[tuple[Any, ...]]:
    """Return the losses and accuracies of the epochs, in their order."""
    found = [event for events in ranks for event in events if isinstance(event, SummaryEvent)]
    return [
        (e.epoch, e.train_loss, e.train_accuracy, e.validation_loss, e.validation_accuracy)
        for e in sorted(found, key=lambda event: event.epoch)
    ]


def segments_left() -> set[Path]:
    """Shared memory with a name. Copies of checkpoints are of other tests: no run here has any."""
    return set(Path("/dev/shm").glob("phalanx*")) - set(Path("/dev/shm").glob("phalanx-copies-*"))


def check(
    command: list[str],
    folder: Path,
    truth: Path,
    deaths: Sequence[Death],
    spares: int = 0,
    strategy: str = "mpi",
) -> str:
    """Train on four ranks, spares among them, of which some die; hold the others to the truth.

    A death may come too late: then its rank has done all that it had to. Return the output.
    """
    segments = segments_left()
    words = ("--ranks", str(RANKS - spares), "--spares", str(spares))
    words += ("--zero-stage", "1") if strategy == "zero" else ()
    done = train(command, folder, "--survive", "--strategy", strategy, *words, deaths=deaths)
    assert done.returncode == 0, done.stdout + done.stderr
    expected, ranks = events_of(truth / "run", 1), events_of(folder / "run", RANKS)
    outcome = read_run(folder / "run").outcome
    lost = set(outcome.lost)
    assert outcome.status == "completed" and lost <= {rank for rank, *_ in deaths}, outcome
    for rank, events in enumerate(ranks):  # one that died after its last line has it, too
        own = certificates([events])
        assert own == certificates(expected) or (rank in lost and not own), rank
    assert losses(ranks) == losses(expected)
    for rank in set(range(RANKS - spares)) - lost:
        counts = Counter(type(event) for event in ranks[rank])
        steps = [event.step for event in ranks[rank] if isinstance(event, StepEvent)]
        assert steps == list(range(EPOCHS * STEPS)), rank
        assert counts[EpochEvent] == EPOCHS and counts[FinishedEvent] == 1
        recovered = [event for event in ranks[rank] if isinstance(event, RecoveredEvent)]
        assert {each for event in recovered for each in event.lost} == lost
    saved = find_checkpoint(folder / "saved")
    assert saved.manifest.position == (EPOCHS, 0) and not saved.skipped
    names = [sorted(os.listdir(each / "saved")) for each in (folder, truth)]
    assert names[0] == names[1]
    for epoch in range(1, EPOCHS + 1):
        assert done.stdout.count(f"epoch {epoch}/{EPOCHS} ") == 1
    are_alike, words = judge(read_bitwise_run(folder / "run"), read_bitwise_run(truth / "run"))
    assert are_alike, words
    (measure,) = read_folder(folder / "run").runs
    assert [epoch.train_loss for epoch in measure.trained] == [row[1] for row in losses(expected)]
    left = [p for p in psutil.process_iter(["cmdline"]) if str(folder) in str(p.info["cmdline"])]
    assert not left
    assert not segments_left() - segments
    return done.stdout


@pytest.mark.parametrize("spares", [long(0), 1])
def test_rank_0_dies_in_a_checkpoint_and_another_in_an_evaluation(
    command: list[str], tmp_path: Path, truth: Path, spares: int
) -> None:
    saved = str(tmp_path / "saved")
    deaths = [
        (0, "checkpoint", [".epoch-0002.new", saved]),
        (2, "evaluation", 4),
        (1, "checkpoint", [".epoch-0004-samples-00000256.new", saved]),
    ]
    output = check(command, tmp_path, truth, deaths, spares)
    assert read_run(tmp_path / "run").outcome.lost == [0, 1, 2]
    place = "rank 3, a spare, took its place: " if spares else ""
    assert f"rank 0 died: {place}3 ranks continued after" in output
    assert "rank 2 died: 2 ranks continued after" in output
    assert "ranks 0, 1, 2 died; the other ranks continued to the end" in output


@pytest.mark.parametrize("strategy", ["shared", long("zero")])
def test_divided_state_survives(
    command: list[str], tmp_path: Path, truth: Path, strategy: str
) -> None:
    """Ranks 0 and 1 hold the same shards, of which rank 2 has copies when rank 0 dies."""
    saved = str(tmp_path / "saved")
    deaths = [
        (1, "checkpoint", [".epoch-0002.new", saved]),
        (0, "evaluation", 4),
        (3, "checkpoint", [".epoch-0007-samples-00000128.new", saved]),
    ]
    check(command, tmp_path, truth, deaths, strategy=strategy)
    assert read_run(tmp_path / "run").outcome.lost == [0, 1, 3]


def drawn(seed: int) -> list[Death]:
    """Return one to three deaths at random moments."""
    chosen = random.Random(seed)
    victims = chosen.sample(range(RANKS), 1 + seed % 3)
    return [(rank, "seconds", chosen.uniform(0, SECONDS)) for rank in victims]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, *range(2000, 2020)])
def test_same_bits_through_random_deaths(
    command: list[str], tmp_path: Path, truth: Path, seed: int
) -> None:
    check(command, tmp_path, truth, drawn(seed))


def test_a_stopped_rank_is_killed_and_a_slow_one_relieved(
    command: list[str], tmp_path: Path, truth: Path
) -> None:
    words = ("--patience", "1.5", "--rebalance", "--slow-rank", "1:0.05", "--ranks", "3")
    done = train(
        command, tmp_path, "--survive", "--strategy", "mpi", *words, deaths=[(2, "stop", 12)]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 2 was killed after its peers had waited 1.5 s for it (--patience)" in done.stderr
    ranks = events_of(tmp_path / "run", 3)
    assert certificates(ranks) == 2 * certificates(events_of(truth / "run", 1))
    assert read_run(tmp_path / "run").outcome.lost == [2]
    assert "rank 1: forward " in done.stdout, done.stdout
    moved = [event for event in ranks[0] if isinstance(event, RebalancedEvent)]
    assert moved and moved[0].micro_batches[1] < 4 and "step " in done.stdout
    assert not list((tmp_path / "run").glob("waits-*"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("spares", "deaths"),
    [
        (1, [(0, "checkpoint", [".epoch-0002.new", "saved"])]),
        (1, []),
        (2, [(0, "evaluation", 4)]),
        (2, [(1, "seconds", 0.1), (0, "seconds", 0.3)]),
    ],
)
def test_spares_take_the_places_of_ranks_that_die(
    command: list[str], tmp_path: Path, truth: Path, spares: int, deaths: list[Death]
) -> None:
    deaths = [
        (rank, when, [what[0], str(tmp_path / what[1])] if isinstance(what, list) else what)
        for rank, when, what in deaths
    ]
    output = check(command, tmp_path, truth, deaths, spares)
    lost = read_run(tmp_path / "run").outcome.lost
    assert lost == sorted(rank for rank, *_ in deaths)
    if len(lost) == 1:
        ranks = RANKS - spares
        took = (
            f"rank {lost[0]} died: rank {ranks}, a spare, took its place: {ranks} ranks continued"
        )
        assert took in output


@pytest.mark.long
def test_rank_0_dies_while_it_makes_the_model(command: list[str], tmp_path: Path) -> None:
    """Which is before all have met, as in any program of `phalanx.start`."""
    words = ("--survive", "--strategy", "mpi", "--ranks", "3")
    done = train(command, tmp_path, *words, deaths=[(0, "start", 0)])
    assert done.returncode == 1, done.stdout
    assert "rank 0 died (SIGKILL) before all ranks were connected" in done.stderr
    assert "--restarts N restarts all of them" in done.stderr


@pytest.mark.long
def test_a_rank_that_fails_ends_all(command: list[str], tmp_path: Path) -> None:
    """Though its launcher goes on with the others, and reports success."""
    words = ("--survive", "--strategy", "mpi", "--ranks", "3")
    done = train(command, tmp_path, *words, deaths=[(1, "failure", 3)])
    assert done.returncode == 1, done.stdout
    assert "rank 1 failed first (exit code 3)" in done.stderr
    assert read_run(tmp_path / "run").outcome.status == "failed"
