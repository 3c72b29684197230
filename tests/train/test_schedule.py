import itertools

import pytest

from phalanx.train.schedule import Schedule


def test_constant_is_constant() -> None:
    schedule = Schedule(kind="constant", peak=0.1, num_steps=10)
    assert {schedule.at(step) for step in range(20)} == {0.1}


def test_cosine_falls_from_the_peak_to_nothing() -> None:
    schedule = Schedule(kind="cosine", peak=0.1, num_steps=100)
    rates = [schedule.at(step) for step in range(101)]
    assert rates[0] == 0.1
    assert rates[50] == pytest.approx(0.05)
    assert rates[100] == pytest.approx(0.0, abs=1e-12)
    assert all(a > b for a, b in itertools.pairwise(rates))
    assert schedule.at(1000) == pytest.approx(0.0, abs=1e-12)
