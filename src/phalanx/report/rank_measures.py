"""Reduction of one rank's events to an entry an epoch. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
from phalanx.report.links import exchanges_of
from phalanx.report.overlap import Overlap, overlap_of

PARTS = ("data", "forward", "backward", "communication", "optimizer")


@dataclass(frozen=True, kw_only=True)
class RankEpoch:
    """Record of one rank on one epoch that it finished."""

    event: EpochEvent
    steps: int
    parts_s: tuple[float, ...]  # sums over the steps, in the order of PARTS
    targets_per_sample: int = 1
    overlap: Overlap | None = None  # of a mean step; None where not measured
    exchanges: Sequence[float] = ()
    """Communication, node and network time of each step (`links.exchanges_of`)."""
    step_events: tuple[StepEvent, ...] = ()
    """Of a study that shows single steps; else they are not kept."""

    @property
    def train_loss(self) -> float | None:
        return ratio_or_none(self.event.loss_sum, self.event.samples * self.targets_per_sample)

    @property
    def train_accuracy(self) -> float | None:
        if self.event.correct is None:
            return None
        return ratio_or_none(self.event.correct, self.event.samples * self.targets_per_sample)


@dataclass(frozen=True, kw_only=True)
class RankMeasure:
    """One rank's file, reduced to one entry an epoch."""

    rank: int = 0
    started: StartedEvent | None = None
    epochs: Mapping[int, RankEpoch] = field(default_factory=dict)
    evaluations: Mapping[int, EvaluationEvent] = field(default_factory=dict)
    finished: FinishedEvent | None = None
    training_evaluation: TrainingEvaluationEvent | None = None
    summaries: Mapping[int, SummaryEvent] = field(default_factory=dict)
    """By epoch, of all ranks; rank 0 alone has them, or after its death the next."""
    memory: MemoryEvent | None = None
    actions: Sequence[ActionEvent] = ()
    metrics: Sequence[MetricsEvent] = ()
    """A program's own; rank 0 alone has them."""
    num_finished: int = 0
    is_last_finished: bool = False  # whether its last event is FinishedEvent

    @property
    def damage(self) -> str | None:
        """Why these are not the records of a rank that came to its end, once; None where they
        are."""
        if not self.is_last_finished:
            return "ends before the run did" if self.started else "is empty"
        if self.num_finished > 1:
            return f"holds the end of the run {self.num_finished} times"
        return None

    @property
    def targets_per_sample(self) -> int:
        """Predictions that a sample asks for: what losses and hits are divided by."""
        return self.started.targets_per_sample if self.started else 1

    @property
    def role(self) -> str:
        return self.started.role if self.started else "worker"

    @property
    def coordinates(self) -> Mapping[str, int]:
        """Along the axes of the mesh."""
        return self.started.coordinates if self.started else {}

    @property
    def expected(self) -> ExpectedCosts:
        """Costs by theory."""
        return (self.started.expected if self.started else None) or ExpectedCosts()

    @property
    def steps(self) -> list[StepEvent]:
        """The steps of the finished epochs, where they were kept."""
        return [step for _, epoch in sorted(self.epochs.items()) for step in epoch.step_events]

    @property
    def num_steps(self) -> int:
        """Steps of the finished epochs."""
        return sum(epoch.steps for epoch in self.epochs.values())

    @property
    def sent_bytes(self) -> int | None:
        """Over all epochs; None where one of them did not count."""
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


def measure_rank(
    events: Iterable[Event], *, rank: int = 0, keeps_steps: bool = False
) -> RankMeasure:
    """Reduce a rank's events. Steps of an epoch that was never finished are left out; of an epoch
    that was done again after a resume, the later one counts."""
    started: StartedEvent | None = None
    finished: FinishedEvent | None = None
    memory: MemoryEvent | None = None
    epochs: dict[int, RankEpoch] = {}
    evaluations: dict[int, EvaluationEvent] = {}
    summaries: dict[int, SummaryEvent] = {}
    steps: list[StepEvent] = []
    actions: list[ActionEvent] = []
    metrics: list[MetricsEvent] = []
    training_evaluation: TrainingEvaluationEvent | None = None
    num_finished, last = 0, None
    for event in events:
        # A program logs metrics after its loop, too, and ranks may be lost at the end.
        if not isinstance(event, MetricsEvent | RecoveredEvent):
            last = event
        match event:
            case StepEvent():
                steps.append(event)
            case ActionEvent():
                actions.append(event)
            case MetricsEvent():
                metrics.append(event)
            case EpochEvent():
                epochs[event.epoch] = _rank_epoch(event, steps, started, keeps_steps=keeps_steps)
                steps = []
            case EvaluationEvent():
                evaluations[event.epoch] = event
            case SummaryEvent():
                summaries[event.epoch] = event
            case TrainingEvaluationEvent():
                training_evaluation = event
            case MemoryEvent():
                memory = event
            case StartedEvent():
                started, steps = started or event, []
            case FinishedEvent():
                finished, num_finished = event, num_finished + 1
            case _:
                pass
    return RankMeasure(
        rank=rank,
        started=started,
        epochs=epochs,
        evaluations=evaluations,
        finished=finished,
        training_evaluation=training_evaluation,
        summaries=summaries,
        memory=memory,
        actions=actions,
        metrics=metrics,
        num_finished=num_finished,
        is_last_finished=isinstance(last, FinishedEvent),
    )


def _rank_epoch(
    event: EpochEvent,
    steps: Sequence[StepEvent],
    started: StartedEvent | None,
    *,
    keeps_steps: bool,
) -> RankEpoch:
    return RankEpoch(
        event=event,
        steps=len(steps),
        parts_s=tuple(sum(getattr(step, f"{part}_s") for step in steps) for part in PARTS),
        targets_per_sample=started.targets_per_sample if started else 1,
        overlap=overlap_of(steps),
        exchanges=exchanges_of(steps),
        step_events=tuple(steps) if keeps_steps else (),
    )


def step_times(ranks: Iterable[RankMeasure]) -> list[float]:
    """Return the time of every step on its slowest rank, of the ranks that make steps."""
    by_rank = [[sum(parts_of(step)) for step in steps] for rank in ranks if (steps := rank.steps)]
    return [max(times) for times in zip(*by_rank, strict=False)]


def parts_of(step: StepEvent) -> tuple[float, ...]:
    """Seconds of a step, in the order of PARTS."""
    return tuple(getattr(step, f"{part}_s") for part in PARTS)


def ratio_or_none(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
