"""Details of a run beyond times and accuracies. Pure.

Losses by step, bytes, memory, staleness, and the actions of a pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from phalanx.records.events import ActionEvent
from phalanx.report.rank_measures import RankMeasure, step_times

EQUAL_WITHIN = 1e-3
"""Counted bytes this close to the formula are called equal: a broadcast at the end of an epoch, or
a smaller last batch, is in the count and not in the formula."""


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """One update over all ranks."""

    step: int
    trained_s: float  # training time so far, of the slowest rank
    loss: float


@dataclass(frozen=True, kw_only=True)
class FormulaCheck:
    """A counted or measured value, and that of the formula; None where unknown."""

    found: float | None
    formula: float | None

    @property
    def difference(self) -> float | None:
        """Relative, of what was found from the formula."""
        if self.found is None or self.formula is None:
            return None
        if not self.formula:
            return 0.0 if not self.found else float("inf")
        return self.found / self.formula - 1

    @property
    def is_equal(self) -> bool | None:
        return None if self.difference is None else abs(self.difference) <= EQUAL_WITHIN


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """One step of a pipeline, on the clock that its ranks share."""

    step: int
    actions: Mapping[int, Sequence[ActionEvent]]  # by place along the pipeline, in order of time
    ranks: Sequence[int]  # of the run, by place
    began_s: float
    ended_s: float

    @property
    def micro_batches(self) -> set[int]:
        return {action.micro_batch for rank in self.actions.values() for action in rank}

    @property
    def bubble(self) -> float:
        """Share of the step in which a rank was at no action, mean over the ranks."""
        busy_s = sum(a.ended_s - a.began_s for rank in self.actions.values() for a in rank)
        return max(0.0, 1 - busy_s / (len(self.actions) * (self.ended_s - self.began_s)))


@dataclass(frozen=True, kw_only=True)
class RunDetail:
    """The ranks of one run beside their formulas."""

    ranks: Sequence[RankMeasure]

    @property
    def num_steps(self) -> int:
        """Updates of the workers' finished epochs."""
        return max((rank.num_steps for rank in self.ranks), default=0)

    @property
    def roles(self) -> list[str]:
        return list(dict.fromkeys(rank.role for rank in self.ranks))

    def of_role(self, role: str) -> list[RankMeasure]:
        return [rank for rank in self.ranks if rank.role == role]

    @property
    def staleness(self) -> Counter[int]:
        total: Counter[int] = Counter()
        for rank in self.ranks:
            total.update(rank.staleness)
        return total

    def sent(self, rank: RankMeasure) -> FormulaCheck:
        """Bytes a step."""
        return self._a_step(rank.sent_bytes, rank.expected.sent_bytes)

    def received(self, rank: RankMeasure) -> FormulaCheck:
        """Bytes a step."""
        return self._a_step(rank.received_bytes, rank.expected.received_bytes)

    def _a_step(self, counted: int | None, formula: float | None) -> FormulaCheck:
        known = counted is not None and self.num_steps
        return FormulaCheck(found=counted / self.num_steps if known else None, formula=formula)  # type: ignore[operator]

    @property
    def step_s(self) -> float | None:
        """Median over the steps after the first epoch's share of warm-up, slowest rank of each."""
        times_s = step_times(self.ranks)
        return median(times_s[len(times_s) // 3 :]) if times_s else None


def state(rank: RankMeasure) -> FormulaCheck:
    """Return measured and expected bytes of parameters, gradients and optimizer state."""
    memory = rank.memory
    if memory is None:
        return FormulaCheck(found=None, formula=rank.expected.state_bytes)
    found = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    return FormulaCheck(found=found, formula=rank.expected.state_bytes)


def losses(detail: RunDetail, *, most: int) -> list[StepLoss]:
    """Mean loss a target of each step over all ranks, at most `most` of them: neighbouring steps
    are averaged where there are more."""
    per_target = max((rank.targets_per_sample for rank in detail.ranks), default=1)
    times_s = step_times(detail.ranks)
    by_rank = [rank.steps for rank in detail.ranks]
    found: list[StepLoss] = []
    trained_s = 0.0
    for number, time_s in enumerate(times_s):
        trained_s += time_s
        here = [steps[number] for steps in by_rank if number < len(steps)]
        targets = sum(step.samples for step in here) * per_target
        if targets:
            loss = sum(step.loss_sum for step in here) / targets
            found.append(StepLoss(step=here[0].step, trained_s=trained_s, loss=loss))
    width = -(-len(found) // most) if found else 1
    pieces = [found[i : i + width] for i in range(0, len(found), width)]
    return [
        StepLoss(
            step=piece[-1].step,
            trained_s=piece[-1].trained_s,
            loss=fmean(one.loss for one in piece),
        )
        for piece in pieces
    ]


def pipeline_step(detail: RunDetail) -> PipelineStep | None:
    """The shortest step that the first pipeline of the run has recorded, the least disturbed; the
    run's first step is left out as warm-up where there are others."""
    steps = pipeline_steps(detail)
    later = [step for step in steps if step.step > 0] or steps
    return min(later, key=lambda step: step.ended_s - step.began_s, default=None)


def pipeline_steps(detail: RunDetail) -> list[PipelineStep]:
    """Return the steps that all ranks of the first pipeline have recorded."""
    ranks = _first_pipeline(detail.ranks)
    by_step: dict[int, dict[int, list[ActionEvent]]] = {}
    for place, rank in enumerate(ranks):
        for action in rank.actions:
            by_step.setdefault(action.step, {}).setdefault(place, []).append(action)
    return [
        PipelineStep(
            step=step,
            actions={p: sorted(parts[p], key=lambda a: a.began_s) for p in sorted(parts)},
            ranks=[rank.rank for rank in ranks],
            began_s=min(a.began_s for part in parts.values() for a in part),
            ended_s=max(a.ended_s for part in parts.values() for a in part),
        )
        for step, parts in sorted(by_step.items())
        if len(parts) == len(ranks)
    ]


def _first_pipeline(ranks: Sequence[RankMeasure]) -> list[RankMeasure]:
    """The ranks with actions that differ from the first of them in their place along the pipeline
    alone, in the order of these places."""
    acting = [rank for rank in ranks if rank.actions]
    if not acting:
        return []
    first = _outside_pipeline(acting[0])
    return sorted(
        (rank for rank in acting if _outside_pipeline(rank) == first),
        key=lambda rank: (rank.coordinates.get("pp", rank.rank), rank.rank),
    )


def _outside_pipeline(rank: RankMeasure) -> dict[str, int]:
    return {axis: place for axis, place in rank.coordinates.items() if axis != "pp"}
