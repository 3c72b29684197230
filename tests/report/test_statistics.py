"""Intervals: that they hold the truth as often as they say, and never say more than they know."""

import math
import random
from statistics import median

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phalanx.report.cells import Cell, Measure
from phalanx.report.statistics import (
    RUN_TO_RUN,
    Interval,
    Times,
    blocks,
    is_spread,
    level_of,
    mean_interval,
    ratio_of_times,
)

TIME = st.floats(0.01, 100.0)
RUNS = st.lists(st.lists(TIME, min_size=1, max_size=4).map(tuple), min_size=1, max_size=4).map(
    tuple
)


def made(noise: random.Random, mean: float, *, runs: int, between: float = 0.03) -> Times:
    """Runs that differ by `between`, with epochs that differ by a percent."""
    return tuple(
        tuple(mean * math.exp(level + noise.gauss(0, 0.01)) for _ in range(5))
        for level in [noise.gauss(0, between) for _ in range(runs)]
    )


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_an_interval_of_a_ratio_holds_the_truth_as_often_as_it_says(runs: int) -> None:
    noise = random.Random(1)
    found = [
        ratio_of_times(made(noise, 1.3, runs=runs), made(noise, 1.0, runs=runs)) for _ in range(150)
    ]
    assert (
        sum(interval is not None and interval.low <= 1.3 <= interval.high for interval in found)
        >= 0.90 * 150
    )


@pytest.mark.parametrize("number", [2, 3, 5])
def test_an_interval_of_a_difference_holds_the_truth_as_often_as_it_says(number: int) -> None:
    noise = random.Random(1)
    found = [mean_interval([noise.gauss(5, 1) for _ in range(number)]) for _ in range(150)]
    assert (
        sum(interval is not None and interval.low <= 5 <= interval.high for interval in found)
        >= 0.90 * 150
    )


def test_the_best_of_many_equals_is_not_called_faster() -> None:
    """13 configurations of one speed, give or take 3 %: one is always the fastest."""
    noise, wrong = random.Random(2), 0
    for _ in range(60):
        first, *rest = [made(noise, 1.0, runs=3) for _ in range(13)]
        best = min(rest, key=lambda cell: median(time for run in cell for time in run))
        interval = ratio_of_times(first, best, comparisons=len(rest))
        wrong += interval is not None and interval.verdict(1.0) == "higher"
    assert wrong <= 4


def test_a_large_effect_is_seen_with_three_runs() -> None:
    noise = random.Random(3)
    interval = ratio_of_times(made(noise, 1.8, runs=3), made(noise, 1.0, runs=3), comparisons=4)
    assert interval is not None
    assert interval.verdict(1.0) == "higher"


@given(RUNS, RUNS)
@settings(max_examples=40, deadline=None)
def test_an_interval_holds_its_estimate_and_is_the_same_every_time(a: Times, b: Times) -> None:
    interval = ratio_of_times(a, b)
    assume(interval is not None)
    assert interval is not None
    assert interval.low <= interval.estimate * (1 + 1e-9)
    assert interval.estimate <= interval.high * (1 + 1e-9)
    assert interval.estimate == pytest.approx(
        median(t for run in a for t in run) / median(t for run in b for t in run)
    )
    assert ratio_of_times(a, b) == interval
    assert interval.inverse.inverse.low == pytest.approx(interval.low)


def difference(*sides: dict[int, float]) -> Interval | None:
    """The difference of two cells, of values by seed."""
    own, base = (Cell(tuple({"seed": s, "x": v} for s, v in side.items())) for side in sides)
    return Measure("x").difference(own, base)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=6), st.floats(-5, 5))
@settings(max_examples=40, deadline=None)
def test_a_paired_difference_knows_nothing_of_what_both_share(
    values: list[float], shift: float
) -> None:
    """However much seeds differ from each other, what is the same in both is no difference."""
    base = dict(enumerate(values))
    interval = difference({seed: value + shift for seed, value in base.items()}, base)
    assert interval is not None
    assert interval.low == pytest.approx(shift, abs=1e-9)
    assert interval.high == pytest.approx(shift, abs=1e-9)


def test_only_seeds_that_both_have_are_compared() -> None:
    """Seeds 0, 1 and 2 have 98, 96 and 94 %; where only seed 0 and 1 are there, no mean is off."""
    interval = difference({0: 0.98, 1: 0.96}, {0: 0.98, 1: 0.96, 2: 0.94})
    assert interval is not None
    assert (interval.low, interval.high) == (0.0, 0.0)


def test_more_comparisons_make_an_interval_wider() -> None:
    noise = random.Random(4)
    sides = made(noise, 1.0, runs=3), made(noise, 1.0, runs=3)
    one, many = (ratio_of_times(*sides, comparisons=number) for number in (1, 12))
    assert one is not None and many is not None
    assert many.low < one.low and one.high < many.high
    assert many.level == pytest.approx(level_of(12))


@pytest.mark.parametrize("times", [(), ((1.0,),), ((),)])
def test_of_a_single_epoch_nothing_is_known(times: Times) -> None:
    assert ratio_of_times(times, ((1.0, 1.1, 1.2),)) is None
    assert mean_interval([1.0]) is None


def test_single_runs_are_not_told_apart_by_what_runs_differ_in_anyway() -> None:
    """The same work in two runs differed by 5 to 11 % on a quiet machine."""
    alone, other = ((1.0, 1.001, 1.0, 0.999, 1.0),), ((0.92, 0.921, 0.92, 0.919, 0.92),)
    single = ratio_of_times(alone, other)
    assert single is not None
    assert single.verdict(1.0) == "unclear"
    assert single.high / single.low >= (1 + RUN_TO_RUN) ** 2 * 0.999
    repeated = ratio_of_times(alone * 3, other * 3)
    assert repeated is not None
    assert repeated.verdict(1.0) == "higher"


def test_verdicts() -> None:
    interval = Interval(estimate=1.5, low=1.2, high=1.8)
    assert interval.verdict(1.0) == "higher"
    assert interval.verdict(2.0) == "lower"
    assert interval.verdict(1.5) == "unclear"


def test_a_run_with_one_slow_epoch_is_flagged() -> None:
    assert is_spread([0.84, 3.42, 0.33])
    assert not is_spread([1.0, 1.2])
    assert not is_spread([])


@given(st.lists(TIME, min_size=1, max_size=200))
@settings(max_examples=40, deadline=None)
def test_blocks_hold_the_times_in_their_order(times: list[float]) -> None:
    found = blocks(times)
    assert 1 <= len(found) <= 39
    assert min(times) <= min(found) and max(found) <= max(times)
    assert len(times) > 20 or list(found) == times
