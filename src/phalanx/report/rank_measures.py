"""Reduction of one rank's events to an entry an epoch: its steps as a table, and what is known from
it, parts of a step and overlap. Pure.

Overlap is communication of a step hidden behind backward, and the share that could be hidden.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from phalanx.records.divergence import mean_loss
from phalanx.records.events import (
    ActionEvent,
    EpochEvent,
    EvaluationEvent,
    Event,
    ExpectedCosts,
    FinishedEvent,
    MemoryEvent,
    MetricsEvent,
    RecoveredEvent,
    StartedEvent,
    StepEvent,
    SummaryEvent,
    TrainingEvaluationEvent,
)

PARTS = ("data", "forward", "backward", "communication", "optimizer")
_PARTS_S = tuple(f"{part}_s" for part in PARTS)
_COLUMNS = (
    *(*_PARTS_S, "hidden_s", "last_bucket_s", "node_s", "network_s"),
    *("loss_sum", "samples", "step"),
)
Steps = NDArray[Any]
"""A row for each step, with fields of `StepEvent`; NaN where one was not measured."""


def step_table(steps: Iterable[StepEvent]) -> Steps:
    values = map(attrgetter(*_COLUMNS), steps)
    rows = [tuple(math.nan if value is None else value for value in row) for row in values]
    return np.array(rows, [(name, "f8") for name in _COLUMNS])


def parts_of(step: StepEvent) -> tuple[float, ...]:
    """Seconds of a step, in the order of PARTS."""
    return tuple(getattr(step, name) for name in _PARTS_S)


def parts_s(steps: Steps) -> NDArray[np.float64]:
    """Return the seconds of each step, shape (steps, PARTS)."""
    return np.stack([steps[name] for name in _PARTS_S], axis=1)


def step_times(ranks: Iterable[Steps]) -> list[float]:
    """Return the time of every step on its slowest rank, of the ranks that make steps."""
    times = [parts_s(steps).sum(axis=1) for steps in ranks if len(steps)]
    number = min(map(len, times), default=0)
    return [float(t) for t in np.max([own[:number] for own in times], axis=0)] if times else []


class Overlap(NamedTuple):
    """Seconds of a mean step."""

    exposed_s: float
    hidden_s: float
    last_bucket_s: float
    """Communication of the bucket that is complete last: nothing is left to hide it behind."""
    backward_s: float

    @property
    def communication_s(self) -> float:
        return self.exposed_s + self.hidden_s

    @property
    def hideable_s(self) -> float:
        """Communication of all but the last bucket, at most the backward time."""
        return min(max(0.0, self.communication_s - self.last_bucket_s), self.backward_s)


def mean_overlap(overlaps: Sequence[Overlap]) -> Overlap | None:
    """Average over ranks, epochs or runs of equal weight; None of nothing."""
    return Overlap(*map(fmean, zip(*overlaps, strict=True))) if overlaps else None


def overlap_of(steps: Steps) -> Overlap | None:
    """Return the mean overlap of the steps that recorded it; None where none did."""
    known = steps[~np.isnan(steps["hidden_s"])]
    if not len(known):
        return None
    names = ("communication_s", "hidden_s", "last_bucket_s", "backward_s")
    return Overlap(*(float(np.nan_to_num(known[name]).mean()) for name in names))


E = TypeVar("E", bound=Event)
CountingEvent = EpochEvent | EvaluationEvent | TrainingEvaluationEvent


@dataclass(frozen=True, kw_only=True)
class RankEpoch:
    """Record of one rank on one epoch that it finished."""

    event: EpochEvent
    steps: Steps = field(repr=False)
    targets_per_sample: int = 1

    @cached_property
    def parts_s(self) -> tuple[float, ...]:
        """Sums over the steps, in the order of PARTS."""
        return tuple(map(float, parts_s(self.steps).sum(axis=0)))

    @cached_property
    def overlap(self) -> Overlap | None:
        """Overlap of a mean step; None where not measured."""
        return overlap_of(self.steps)

    @property
    def train_loss(self) -> float | None:
        return loss_of([self.event], self.targets_per_sample)

    @property
    def train_accuracy(self) -> float | None:
        return accuracy_of([self.event], self.targets_per_sample)


@dataclass(frozen=True, kw_only=True)
class RankMeasure:
    """One rank's file, its steps reduced to one entry an epoch."""

    rank: int = 0
    epochs: Mapping[int, RankEpoch] = field(default_factory=dict)
    events: Sequence[Event] = ()
    """All but steps and epochs, in their order."""
    is_last_finished: bool = False  # its last event is FinishedEvent

    @cached_property
    def _by_kind(self) -> dict[type[Event], list[Any]]:
        found: dict[type[Event], list[Any]] = {}
        for event in self.events:
            found.setdefault(type(event), []).append(event)
        return found

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        return self._by_kind.get(kind, [])

    @property
    def started(self) -> StartedEvent | None:
        return next(iter(self.of(StartedEvent)), None)

    @property
    def memory(self) -> MemoryEvent | None:
        return next(reversed(self.of(MemoryEvent)), None)

    @property
    def training_evaluation(self) -> TrainingEvaluationEvent | None:
        return next(reversed(self.of(TrainingEvaluationEvent)), None)

    @cached_property
    def evaluations(self) -> Mapping[int, EvaluationEvent]:
        return {event.epoch: event for event in self.of(EvaluationEvent)}

    @cached_property
    def summaries(self) -> Mapping[int, SummaryEvent]:
        """Sums over all ranks, by epoch; rank 0 alone has them, or after its death the next."""
        return {event.epoch: event for event in self.of(SummaryEvent)}

    @property
    def actions(self) -> Sequence[ActionEvent]:
        return self.of(ActionEvent)

    @property
    def metrics(self) -> Sequence[MetricsEvent]:
        """A program's own; rank 0 alone has them."""
        return self.of(MetricsEvent)

    @property
    def damage(self) -> str | None:
        """Why these are not the records of a rank that came to its end, once; None where they
        are."""
        if not self.is_last_finished:
            return "ends before the run did" if self.started else "is empty"
        return damage_of(self.of(FinishedEvent), FinishedEvent)

    @property
    def targets_per_sample(self) -> int:
        """Predictions that a sample asks for: what losses and hits are divided by."""
        return self.started.targets_per_sample if self.started else 1

    @property
    def role(self) -> str:
        return self.started.role if self.started else "worker"

    @property
    def coordinates(self) -> Mapping[str, int]:
        """Coordinates along the axes of the mesh."""
        return self.started.coordinates if self.started else {}

    @property
    def expected(self) -> ExpectedCosts:
        """Costs by theory."""
        return (self.started.expected if self.started else None) or ExpectedCosts()

    @property
    def steps(self) -> Steps:
        """The steps of the finished epochs."""
        epochs = [epoch.steps for _, epoch in sorted(self.epochs.items())]
        return np.concatenate([step_table(()), *epochs])

    @property
    def num_steps(self) -> int:
        """Steps of the finished epochs."""
        return sum(len(epoch.steps) for epoch in self.epochs.values())

    @property
    def sent_bytes(self) -> int | None:
        """Bytes sent in all epochs; None if one of them did not count."""
        return _total([epoch.event.sent_bytes for epoch in self.epochs.values()])

    @property
    def received_bytes(self) -> int | None:
        return _total([epoch.event.received_bytes for epoch in self.epochs.values()])

    @property
    def staleness(self) -> Counter[int]:
        """Number of updates by how many of others came between reading and writing."""
        total: Counter[int] = Counter()
        for epoch in self.epochs.values():
            total.update(epoch.event.staleness)
        return total


def measure_rank(events: Iterable[Event], *, rank: int = 0) -> RankMeasure:
    """Reduce a rank's events. Steps of an epoch that was never finished are left out; of an epoch
    that was done again after a resume, the later one counts."""
    epochs: dict[int, RankEpoch] = {}
    steps: list[StepEvent] = []
    others: list[Event] = []
    last, targets = None, 1
    for event in events:
        # A program logs metrics after its loop, too, and ranks may be lost at the end.
        if not isinstance(event, MetricsEvent | RecoveredEvent):
            last = event
        match event:
            case StepEvent():
                steps.append(event)
            case EpochEvent():
                epochs[event.epoch] = RankEpoch(
                    event=event, steps=step_table(steps), targets_per_sample=targets
                )
                steps = []
            case StartedEvent():
                targets, steps = event.targets_per_sample, []
                others.append(event)
            case _:
                others.append(event)
    is_finished = isinstance(last, FinishedEvent)
    return RankMeasure(rank=rank, epochs=epochs, events=others, is_last_finished=is_finished)


def damage_of(events: Sequence[Event], last: type[Event]) -> str | None:
    """Return why a file does not end with an event of the kind `last`, the only one of it; None
    where it does."""
    if not events:
        return "is empty"
    if not isinstance(events[-1], last):
        return "ends before the run did"
    count = sum(isinstance(event, last) for event in events)
    return f"has the end of the run {count} times" if count > 1 else None


def loss_of(
    events: Sequence[EpochEvent | EvaluationEvent], targets_per_sample: int
) -> float | None:
    """Return the mean loss of a prediction over the events of ranks; None without any."""
    targets = sum(event.samples for event in events) * targets_per_sample
    return mean_loss(sum(event.loss_sum for event in events), targets) if targets else None


def accuracy_of(events: Sequence[CountingEvent], targets_per_sample: int) -> float | None:
    """Return the share of right predictions; None where a rank has not counted them."""
    correct = [event.correct for event in events if event.correct is not None]
    targets = sum(event.samples for event in events) * targets_per_sample
    return sum(correct) / targets if targets and len(correct) == len(events) else None


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
