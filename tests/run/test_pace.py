"""Slow ranks are named by what they have measured."""

from dataclasses import dataclass, field

import pytest

from phalanx.run.pace import TOLD_EVERY_STEPS, RankPace, SlowRank, SlowRanks, slow_phase

STEPS = 20


def pace(
    micro_batches: int = 2,
    *,
    data_s: float = 0.001,
    forward_s: float = 0.010,
    backward_s: float = 0.020,
    optimizer_s: float = 0.004,
) -> RankPace:
    """Return the pace of a rank over 20 steps of so many micro-batches. Seconds: of a micro-batch,
    and of an update."""
    number = STEPS * micro_batches
    times = data_s * number, forward_s * number, backward_s * number, optimizer_s * STEPS
    return RankPace(number, *times, step_s=sum(times))


@pytest.mark.parametrize(
    ("slow", "found"),
    [
        (pace(backward_s=0.042), ("backward", 2.1)),
        (pace(data_s=0.031), ("data", 31.0)),
        (pace(optimizer_s=0.024), ("optimizer", 6.0)),
        (pace(forward_s=0.014, backward_s=0.028), None),  # 1.4 times
        (pace(data_s=0.003), None),  # which nobody notices
        (pace(4), None),  # more to do
        (pace(1, backward_s=0.042), ("backward", 2.1)),  # it has less to do already
    ],
)
def test_a_phase_that_takes_much_longer_than_on_the_other_ranks(
    slow: RankPace, found: tuple[str, float] | None
) -> None:
    for others in ([pace()], [pace(), pace(), pace()]):
        phase = slow_phase([*others, slow], len(others), STEPS)
        assert phase == (None if found is None else (found[0], pytest.approx(found[1])))
        assert all(slow_phase([*others, slow], rank, STEPS) is None for rank in range(len(others)))
    assert slow_phase([slow], 0, STEPS) is None, "the last one that is left"


def test_a_rank_alone_is_not_slow() -> None:
    assert slow_phase([pace()], 0, STEPS) is None


@dataclass
class Told:
    """What is told of ranks in one window after the other."""

    slow: SlowRanks = field(default_factory=SlowRanks)
    step: int = 0

    def after(self, *paces: RankPace) -> list[SlowRank]:
        self.step += STEPS
        return self.slow.see(paces, steps=STEPS, step=self.step)


def test_it_is_told_when_it_lasts_and_then_rarely() -> None:
    told, slow = Told(), pace(backward_s=0.050)
    assert told.after(pace(), slow, pace()) == []
    assert told.after(pace(), slow, pace()) == [SlowRank(1, "backward", pytest.approx(2.5), 40)]
    silent = [told.after(pace(), slow, pace()) for _ in range(TOLD_EVERY_STEPS // STEPS - 1)]
    assert silent == [[]] * len(silent)
    again = told.after(pace(), slow, pace())
    assert again == [SlowRank(1, "backward", pytest.approx(2.5), 40 + TOLD_EVERY_STEPS)]


def test_one_slow_window_is_forgotten() -> None:
    told, slow = Told(), pace(forward_s=0.050)
    for _ in range(3):
        assert told.after(pace(), slow) == []
        assert told.after(pace(), pace()) == []
