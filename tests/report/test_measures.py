"""Measures against numbers computed by hand."""

import msgspec
import pytest

from phalanx.records.events import (
    EpochEvent,
    EvaluationEvent,
    Event,
    MetricsEvent,
    StepEvent,
)
from phalanx.records.schema import Outcome
from phalanx.report.measures import measure_run, timed_epochs
from phalanx.report.rank_measures import PARTS, RankMeasure, measure_rank
from tests.report import made_events
from tests.report.made_events import set_otherwise, started
from tests.report.made_study import Job, run_of


def step(epoch: int, communication_s: float = 0.0, forward_s: float = 0.2) -> StepEvent:
    return made_events.step(
        epoch=epoch,
        data_s=0.1,
        forward_s=forward_s,
        backward_s=0.3,
        communication_s=communication_s,
        optimizer_s=0.4,
    )


def epoch(
    number: int, train_s: float, samples: int = 1, loss_sum: float = 0.0, correct: int = 0
) -> EpochEvent:
    return made_events.epoch(
        number, train_s=train_s, samples=samples, loss_sum=loss_sum, correct=correct
    )


def evaluation(number: int, samples: int, loss_sum: float, correct: int) -> EvaluationEvent:
    return made_events.evaluation(number, samples=samples, loss_sum=loss_sum, correct=correct)


def ranks(*events: list[Event]) -> dict[int, RankMeasure]:
    return {rank: measure_rank([started(rank), *listed]) for rank, listed in enumerate(events)}


def test_an_epoch_takes_as_long_as_its_slowest_rank() -> None:
    run = measure_run(
        run_of(Job("mlp", "mpi", ranks=2), "s"), ranks([epoch(0, 2.0)], [epoch(0, 3.0)])
    )
    assert [e.epoch_s for e in run.epochs] == [3.0]


def test_uneven_ranks_weigh_by_their_samples() -> None:
    run = measure_run(
        run_of(Job("mlp", "mpi", ranks=2), "s"),
        ranks(
            [epoch(0, 1.0, 4, 8.0, 2), evaluation(0, 2, 1.0, 1)],
            [epoch(0, 1.0, 3, 6.0, 3), evaluation(0, 1, 2.0, 1)],
        ),
    )
    only = run.epochs[0]
    assert (only.train_loss, only.train_accuracy) == (14.0 / 7, 5 / 7)
    assert (only.validation_loss, only.validation_accuracy) == (1.0, 2 / 3)
    assert run.images_per_s == 7.0


def test_losses_of_a_text_are_those_of_a_character() -> None:
    """A sample asks for as many predictions as it has characters; speeds stay those of samples."""
    of_text = {
        rank: measure_rank(
            [
                started(rank, targets_per_sample=10),
                epoch(0, 1.0, samples, 2.0 * samples * 10, correct=3 * samples),
                evaluation(0, samples, 1.5 * samples * 10, correct=4 * samples),
            ]
        )
        for rank, samples in enumerate((4, 3))
    }
    run = measure_run(run_of(Job("mlp", "mpi", ranks=2), "s"), of_text)
    only = run.epochs[0]
    assert (only.train_loss, only.train_accuracy) == (2.0, 0.3)
    assert (only.validation_loss, only.validation_accuracy) == (1.5, 0.4)
    assert (only.samples, run.images_per_s) == (7, 7.0)
    rank = run.ranks[1].epochs[0]
    assert (rank.train_loss, rank.train_accuracy) == (2.0, 0.3)


@pytest.mark.parametrize(
    ("epochs", "timed"), [([], ()), ([0], (0,)), ([0, 1], (0, 1)), ([0, 1, 2], (1, 2))]
)
def test_the_first_epoch_is_warm_up_from_three_on(epochs: list[int], timed: list[int]) -> None:
    assert timed_epochs(epochs) == timed


def test_median_without_warm_up_and_raw_times_kept() -> None:
    times_s = [9.0, 1.0, 2.0, 6.0]
    run = measure_run(
        run_of(Job("mlp", "sequential"), "s"),
        ranks([epoch(number, time_s) for number, time_s in enumerate(times_s)]),
    )
    assert run.epoch_s == 2.0
    assert [e.epoch_s for e in run.epochs] == times_s
    assert [e.trained_s for e in run.epochs] == [9.0, 10.0, 12.0, 18.0]


def test_communication_share_is_the_mean_over_ranks() -> None:
    run = measure_run(
        run_of(Job("mlp", "mpi", ranks=2), "s"),
        ranks(
            [step(0, communication_s=1.0), epoch(0, 4.0)],
            [step(0, communication_s=3.0), epoch(0, 4.0)],
        ),
    )
    assert run.communication_share == (0.25 + 0.75) / 2


def test_mean_step_over_ranks_and_steps() -> None:
    run = measure_run(
        run_of(Job("mlp", "mpi", ranks=2), "s"),
        ranks(
            [step(0, 1.0, forward_s=0.2), step(0, 2.0, forward_s=0.4), epoch(0, 4.0)],
            [step(0, 3.0, forward_s=0.6), step(0, 2.0, forward_s=0.8), epoch(0, 4.0)],
        ),
    )
    assert run.step_parts_s == pytest.approx((0.1, 0.5, 0.3, 2.0, 0.4))
    assert PARTS == ("data", "forward", "backward", "communication", "optimizer")


def test_the_evaluation_before_the_first_epoch_takes_no_training_time() -> None:
    run = measure_run(
        run_of(Job("mlp", "sequential"), "s"),
        ranks([evaluation(-1, 2, 4.0, 0), epoch(0, 1.0), evaluation(0, 2, 1.0, 2)]),
    )
    assert [(e.epoch, e.trained_s, e.validation_loss) for e in run.epochs] == [
        (-1, 0.0, 2.0),
        (0, 1.0, 0.5),
    ]
    assert [e.epoch for e in run.trained] == [0]


def test_an_epoch_counts_when_every_rank_has_finished_it() -> None:
    run = measure_run(
        run_of(Job("mlp", "mpi", ranks=2), "s"),
        ranks([epoch(0, 1.0), epoch(1, 1.0)], [epoch(0, 1.0)]),
    )
    assert [e.epoch for e in run.epochs] == [0]


def test_steps_of_an_epoch_that_was_begun_again_count_once() -> None:
    events = [step(0, 9.0), started(), step(0, 1.0), epoch(0, 2.0)]
    assert measure_rank(events).num_steps == 1
    assert measure_rank(events).epochs[0].parts_s[PARTS.index("communication")] == 1.0


def test_the_error_names_its_rank() -> None:
    outcome = Outcome(status="failed", error="RuntimeError: lost", rank=2)
    run = measure_run(run_of(Job("mlp", "mpi", outcome=outcome), "s"), {})
    assert (run.status, run.error) == ("failed", "rank 2: RuntimeError: lost")
    assert run.epoch_s is None


def test_a_part_of_an_epoch_is_not_timed() -> None:
    """A run that went on within its first epoch: 2,000 samples in 0.13 s, then 20,000 in 1.18 s,
    were shown as 0.655 s an epoch and 30,536 images/s."""
    part = msgspec.structs.replace(epoch(0, 0.13, samples=2_000), first_sample=18_000)
    run = measure_run(run_of(Job("mlp", "sequential"), "s"), ranks([part, epoch(1, 1.18, 20_000)]))
    assert ([e.epoch for e in run.timed], run.epoch_s) == ([1], 1.18)
    assert run.images_per_s == pytest.approx(20_000 / 1.18)
    alone = measure_run(run_of(Job("mlp", "sequential"), "s"), ranks([part]))
    assert alone.epoch_s is None, "nobody knows how long a whole epoch would take"
    assert alone.images_per_s == pytest.approx(2_000 / 0.13)


@pytest.mark.parametrize(
    ("strategy", "options", "is_known"),
    [
        ("zero", {}, False), ("zero", {"zero_stage": 2}, False), ("zero", {"zero_stage": 1}, True),
        ("tensor", {}, False), ("mesh", {}, False), ("pipeline", {}, True), ("mpi", {}, True),
    ],
)  # fmt: skip
def test_messages_within_the_passes_are_not_told_as_communication(
    strategy: str, options: dict[str, int], is_known: bool
) -> None:
    """ZeRO 3 takes 12 times as long as one process, and 0.7 % of it was called communication."""
    made = run_of(Job("mlp", "mpi", ranks=2), "s")
    events = [step(0, communication_s=1.0), epoch(0, 4.0)]
    run = measure_run(
        set_otherwise(made, strategy=strategy, options=options), ranks(events, events)
    )
    assert (run.communication_share is not None) is is_known
    assert (run.step_parts_s is not None) is is_known


def test_processor_time_is_that_of_all_ranks_in_a_timed_epoch() -> None:
    def timed(number: int, user_s: float) -> EpochEvent:
        return msgspec.structs.replace(epoch(number, 1.0), user_s=user_s, system_s=user_s / 10)

    made = run_of(Job("mlp", "mpi", ranks=2), "s")
    events = [timed(0, 9.0), timed(1, 1.0), timed(2, 3.0)]
    run = measure_run(made, ranks(events, events))
    assert run.processor_s == pytest.approx((4.0, 0.4))
    untold = measure_run(made, ranks(events, [epoch(n, 1.0) for n in range(3)]))
    assert untold.processor_s is None


def test_an_accuracy_that_a_program_logs_is_that_of_its_run() -> None:
    """In a study of a user's program the column `acc. %` was empty, although it logs `accuracy`."""
    logged = [
        MetricsEvent(at_s=1.0, epoch=0, step=n, metrics={"accuracy": 0.8 + n / 10}) for n in (0, 1)
    ]
    events = [started(), step(0), epoch(0, 1.0), *logged]
    ranks = {0: measure_rank(events)}
    assert measure_run(run_of(Job("mlp", "mpi"), "s"), ranks).final_accuracy == 0.9
    percent = MetricsEvent(at_s=1.0, epoch=0, step=9, metrics={"accuracy": 92.0})
    ranks = {0: measure_rank([*events, percent])}
    assert measure_run(run_of(Job("mlp", "mpi"), "s"), ranks).final_accuracy is None
