"""Comparison of the ranks' times about once a second: slow ranks are told of, or relieved."""

from __future__ import annotations

import math
import sys

from phalanx.parallel.replicas import Replicas
from phalanx.parallel.step import StepResult
from phalanx.parallel.strategy import Strategy
from phalanx.records.events import RebalancedEvent, SlowRankEvent
from phalanx.records.rank_texts import rebalanced_text, slow_rank_text
from phalanx.run.pace import RankPace, Rebalancer, SlowRank, SlowRanks, division
from phalanx.run.recording import RunRecorder

FIRST_STEPS = 3
"""Left out: buffers are made then."""
MIN_STEPS, MAX_STEPS = 20, 10_000
"""Fewest and most steps between two comparisons."""
INTERVAL_S = 1.0
"""The same, where that is more steps. One costs a small sum over the ranks."""


class StepWatch:
    """Watch of the steps of a rank and its peers, all of which compare at the same steps."""

    def __init__(self, strategy: Strategy, recorder: RunRecorder, *, rebalances: bool) -> None:
        """rebalances: the micro-batches are divided anew."""
        self._strategy, self._group, self._recorder = strategy, strategy.group, recorder
        self._rebalances = rebalances
        self.restart()

    @classmethod
    def of(cls, strategy: Strategy, recorder: RunRecorder, *, rebalances: bool) -> StepWatch | None:
        """Return a watch; None where ranks do not make the same steps of like parts of a batch."""
        is_alike = strategy.is_in_lockstep and strategy.role == "worker"
        if strategy.size == 1 or strategy.data_size != strategy.size or not is_alike:
            return None
        return cls(strategy, recorder, rebalances=rebalances)

    def restart(self) -> None:
        """Compare anew, as at the first step. At the same step on all ranks."""
        self._rebalancer, self._slow = Rebalancer(), SlowRanks()
        self._num_ranks = self._group.size
        self._num_left_out, self._window = FIRST_STEPS, MIN_STEPS
        self._begin_window()

    def _begin_window(self) -> None:
        self._steps, self._sums = 0, [0.0] * 6

    def end_step(
        self,
        step: int,
        result: StepResult,
        times: tuple[float, float, float],
        micro_batches: int,
    ) -> None:
        """Count a step and, where one is due, compare the ranks. Collective.

        times: as of `RunRecorder.end_step`. micro_batches: that this rank computed.
        """
        if self._group.size == 1:  # the others are lost
            return
        if self._num_left_out:
            self._num_left_out -= 1
            return
        began, loaded_at, ended = times
        sums = self._sums  # one by one: it is done at every step
        sums[0] += micro_batches
        sums[1] += loaded_at - began
        sums[2] += result.forward_s
        sums[3] += result.backward_s
        sums[4] += result.communication_s
        sums[5] += ended - began
        self._steps += 1
        if self._steps >= self._window:
            self._compare(step + 1)

    def _compare(self, step: int) -> None:
        """step: updates made."""
        done, data_s, forward_s, backward_s, communication_s, step_s = self._sums
        optimizer_s = max(0.0, step_s - data_s - forward_s - backward_s - communication_s)
        own = RankPace(done, data_s, forward_s, backward_s, optimizer_s, step_s)
        paces = [RankPace._make(row) for row in self._group.exchange(own)]
        steps = self._steps
        self._begin_window()
        slowest_s = max(pace.step_s for pace in paces) / steps
        pace_steps = math.ceil(INTERVAL_S / max(slowest_s, 1e-9))
        self._window = min(MAX_STEPS, max(MIN_STEPS, pace_steps))
        if len(paces) != self._group.size or len(paces) == 1:  # ranks were lost meanwhile
            return
        if len(paces) != self._num_ranks:
            self._num_ranks, self._slow = len(paces), SlowRanks()
        for slow in self._slow.see(paces, steps=steps, step=step):
            self._tell(slow, step)
        if self._rebalances:
            self._rebalance(paces, steps, step)

    def _tell(self, slow: SlowRank, step: int) -> None:
        event = SlowRankEvent(
            at_s=self._recorder.at_s(),
            step=step,
            name=self._group.name(slow.rank),
            phase=slow.phase,
            ratio=slow.ratio,
            steps=slow.steps,
        )
        self._note(event, slow_rank_text(event))

    def _rebalance(self, paces: list[RankPace], steps: int, step: int) -> None:
        strategy = self._strategy
        assert isinstance(strategy, Replicas) and strategy.division, "checked before the run"
        former = [len(own) for own in strategy.division.owners]
        counts = self._rebalancer.see(paces, former, steps=steps)
        if counts is None:
            return
        strategy.divide(division(counts))
        event = RebalancedEvent(
            at_s=self._recorder.at_s(), step=step, former=former, micro_batches=list(counts)
        )
        self._note(event, rebalanced_text(event))

    def _note(self, event: SlowRankEvent | RebalancedEvent, text: str) -> None:
        """Record and print, on rank 0."""
        if self._group.rank == 0:
            print(text, file=sys.stderr, flush=True)
            self._recorder.write(event)
