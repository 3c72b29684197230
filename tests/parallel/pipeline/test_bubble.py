"""Idle shares: formulas and tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.parallel.pipeline.layout import layout_of
from phalanx.parallel.pipeline.orders import Action
from phalanx.parallel.pipeline.timeline import ideal_bubble, simulate


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 6), st.integers(0, 12))
def test_gpipe_and_1f1b(schedule: str, p: int, more: int) -> None:
    m = p + more
    layout = layout_of(schedule, num_ranks=p, micro_batches=m)
    assert ideal_bubble(layout) == pytest.approx((p - 1) / (m + p - 1))


@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 4))
def test_interleaved(p: int, rounds: int, v: int) -> None:
    m = p * rounds
    layout = layout_of("interleaved", num_ranks=p, micro_batches=m, stages_per_rank=v)
    assert ideal_bubble(layout) == pytest.approx((p - 1) / (v * m + p - 1))


@given(st.integers(2, 5), st.integers(0, 3), st.integers(1, 3))
def test_zero_bubble(p: int, rounds: int, v: int) -> None:
    """In a line, in a V, and in a loop; less idle than 1F1B."""
    m = p * (2 + rounds)
    layout = layout_of("zero-bubble", num_ranks=p, micro_batches=m, stages_per_rank=v)
    assert ideal_bubble(layout) == pytest.approx((p - 1) / (3 * v * m + p - 1))
    assert ideal_bubble(layout) < ideal_bubble(layout_of("1f1b", num_ranks=p, micro_batches=m))


def test_given_times() -> None:
    """Of a slow second stage the first rank waits: 4 micro-batches of 3 in 3 + 4·6."""

    def lasts(action: Action) -> float:
        return (1 + action.stage) * (1 if action.kind == "forward" else 2)

    layout = layout_of("1f1b", num_ranks=2, micro_batches=4)
    spans = simulate(layout, lasts)
    assert spans[0][-1].ended == 1 + 4 * 6 + 2
    assert ideal_bubble(layout, lasts) == pytest.approx(1 - (4 * 3 + 4 * 6) / (2 * 27))
