import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.train.config import TrainConfig
from phalanx.train.schedule import LRSchedule, check_warm_up, schedule_of, step_at

KINDS = ("constant", "step", "cosine", "polynomial")
WARM_UPS = ("constant", "linear", "cosine")


@st.composite
def schedules(draw: st.DrawFn) -> LRSchedule:
    num_steps = draw(st.integers(1, 300))
    return LRSchedule(
        kind=draw(st.sampled_from(KINDS)),
        peak=draw(st.floats(1e-6, 100.0)),
        num_steps=num_steps,
        warmup=draw(st.sampled_from(WARM_UPS)),
        warmup_steps=draw(st.integers(0, num_steps // 2)),
        power=draw(st.floats(0.5, 3.0)),
    )


def test_constant_is_constant() -> None:
    schedule = LRSchedule(kind="constant", peak=0.1, num_steps=10)
    assert {schedule.at(step) for step in range(20)} == {0.1}


def test_cosine_falls_from_the_peak_to_nothing() -> None:
    schedule = LRSchedule(kind="cosine", peak=0.1, num_steps=100)
    rates = [schedule.at(step) for step in range(101)]
    assert rates[0] == 0.1
    assert rates[50] == pytest.approx(0.05)
    assert rates[100] == pytest.approx(0.0, abs=1e-12)
    assert all(a > b for a, b in itertools.pairwise(rates))
    assert schedule.at(1000) == pytest.approx(0.0, abs=1e-12)


def test_polynomial_falls_by_its_power() -> None:
    schedule = LRSchedule(kind="polynomial", peak=0.4, num_steps=10, power=2.0)
    assert [schedule.at(step) for step in (0, 5, 10, 99)] == pytest.approx([0.4, 0.1, 0.0, 0.0])


def test_step_falls_at_parts_of_the_whole_run() -> None:
    schedule = LRSchedule(
        kind="step", peak=1.0, num_steps=8, warmup_steps=2, milestones=(0.5, 0.75)
    )
    rates = [schedule.at(step) for step in range(8)]
    assert rates == pytest.approx([1 / 3, 2 / 3, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_warm_ups_rise_to_the_peak() -> None:
    made = {
        kind: [
            LRSchedule(
                kind="constant", peak=1.0, num_steps=9, warmup=kind, warmup_steps=3
            ).at(step)
            for step in range(5)
        ]
        for kind in WARM_UPS
    }  # fmt: skip
    assert made["linear"] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert made["cosine"] == pytest.approx([0.146447, 0.5, 0.853553, 1, 1], abs=1e-6)
    assert made["constant"] == [0.1, 0.1, 0.1, 1, 1]


@given(schedules())
def test_every_schedule_rises_to_its_peak_and_falls_from_there(schedule: LRSchedule) -> None:
    rates = [schedule.at(step) for step in range(schedule.num_steps + 5)]
    rising, falling = rates[: schedule.warmup_steps], rates[schedule.warmup_steps :]
    assert all(0 < rate < schedule.peak for rate in rising)
    assert all(a <= b for a, b in itertools.pairwise(rising))
    if schedule.kind != "step" or schedule.warmup_steps < 0.5 * schedule.num_steps:
        assert falling[0] == pytest.approx(schedule.peak)
    assert all(a >= b >= 0 for a, b in itertools.pairwise(falling))


def test_a_milestone_is_reached_at_its_step() -> None:
    """0.55 of 100 is 55.00000000000001 in floating point."""
    for part in (0.07, 0.14, 0.28, 0.29, 0.55, 0.56, 0.57, 0.58):
        schedule = LRSchedule(kind="step", peak=1.0, num_steps=100, milestones=(part,))
        falls = [step for step in range(100) if schedule.at(step) < 1]
        assert falls[0] == round(part * 100)


@given(schedules(), st.integers(0, 50))
def test_begun_anew_it_is_the_schedule_of_what_is_left(schedule: LRSchedule, first: int) -> None:
    anew = replace(schedule, first_step=first, num_steps=schedule.num_steps + first)
    rates = [anew.at(first + step) for step in range(schedule.num_steps)]
    assert rates == [schedule.at(step) for step in range(schedule.num_steps)]


def test_positions_become_steps() -> None:
    sizes = {"num_train": 77, "global_batch_size": 8}  # ten steps an epoch
    assert [step_at((0, seen), **sizes) for seen in (0, 8, 32, 72)] == [0, 1, 4, 9]
    assert step_at((3, 0), **sizes) == 30
    assert step_at((1, 30), **sizes) == 14, "47 samples left, of another batch: six steps"


@given(schedules())
def test_without_a_warm_up_nothing_rises(schedule: LRSchedule) -> None:
    """And what comes after one is the same decay, over the steps that are left."""
    plain = LRSchedule(
        kind=schedule.kind,
        peak=schedule.peak,
        num_steps=schedule.num_steps - schedule.warmup_steps,
        power=schedule.power,
    )
    if schedule.kind != "step":
        later = [schedule.at(schedule.warmup_steps + step) for step in range(plain.num_steps)]
        assert later == [plain.at(step) for step in range(plain.num_steps)]


def test_of_a_run_epochs_become_steps() -> None:
    config = TrainConfig.from_options(
        lr=0.1, lr_rule="linear", batch_size=1024, epochs=4, warmup_epochs=1.5,
        lr_schedule="polynomial", lr_power=1.0, warmup="cosine",
    )  # fmt: skip
    made = schedule_of(config, global_batch_size=1024, num_train=10_000)
    assert made == LRSchedule(
        kind="polynomial", peak=0.8, num_steps=40, warmup="cosine", warmup_steps=15, power=1.0
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"warmup_epochs": 5.0}, "--warmup-epochs 5 is the full run of 5 epochs"),
        (
            {"warmup_epochs": 3.0, "lr_schedule": "step"},
            "--warmup-epochs 3 ends after the first of --lr-milestones, 0.5 of 5 epochs = 2.5",
        ),
    ],
)
def test_a_warm_up_that_leaves_nothing_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_warm_up(TrainConfig.from_options(epochs=5, **options))  # type: ignore[arg-type]
