"""Timeline of a training that faults disturb, from the events of its ranks. Pure.

A step counts from the last start of the run that made it: steps that a restart makes again were
lost the first time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from phalanx.records.schema import (
    Event,
    FaultKind,
    FinishedEvent,
    InjectedEvent,
    MetricsEvent,
    RecoveredEvent,
    StartedEvent,
    StepEvent,
)
from phalanx.report.rank_measures import parts_of

LOSS = "loss"
"""Name under which the program records the loss of a step."""
NEIGHBOURS = 10
"""Undisturbed steps before a disturbed one, whose median says what it would have taken."""
RankEvents = Mapping[int, Sequence[Event]]
"""Events by rank, of one start of the run."""


@dataclass(frozen=True, kw_only=True)
class TimedStep:
    """A step that counts."""

    step: int
    began_s: float
    """When the step before it had ended. Seconds since the first step began, as all times here."""
    ended_s: float
    """On the last rank."""
    took_s: float
    """Of its own parts, on that rank: without checkpoints and what else is between two steps."""
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class FaultMeasure:
    """A fault, and what it cost."""

    kind: FaultKind
    rank: int
    pause_s: float | None
    at_s: float
    step: int
    """Updates made before it."""
    notice_s: float | None
    """Until the last survivor had noticed; None where nobody told."""
    recovery_s: float | None
    """From there to the new world, of the slowest survivor."""
    continue_s: float | None
    """Until the next step had ended that counts; None where none did."""
    lost_s: float
    """Time that its step took longer; of several faults in one step the first has it."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Steps and faults of a run."""

    steps: tuple[TimedStep, ...]
    faults: tuple[FaultMeasure, ...]
    num_starts: int
    steps_again: int
    """Steps that a start made that an earlier one had made already."""
    effective_s: float
    """Time spent on steps that count; a disturbed one counts as its neighbours take."""

    @property
    def wall_s(self) -> float:
        """From the begin of the first step to the end of the last."""
        return self.steps[-1].ended_s if self.steps else 0.0

    @property
    def effective_share(self) -> float | None:
        """Share of the wall-clock time that was spent on steps that count."""
        return self.effective_s / self.wall_s if self.steps else None


def make_timeline(starts: Sequence[RankEvents]) -> Timeline:
    """starts: of the run, in their order."""
    ends: dict[int, tuple[float, float]] = {}  # of a step: Unix time, seconds of its parts
    losses: dict[int, float] = {}
    again = 0
    for ranks in starts:
        made = dict[int, tuple[float, float]]()
        for events in ranks.values():
            _add_steps(events, made, losses)
        again += len(ends.keys() & made.keys())
        ends |= made
    if not ends:
        return Timeline(steps=(), faults=(), num_starts=len(starts), steps_again=0, effective_s=0.0)
    first = min(ends)
    origin = ends[first][0] - ends[first][1]
    steps = tuple(_counted(ends, losses, origin))
    injected = [fault for ranks in starts for fault in _faults_of(ranks)]
    moments = sorted(fault.time_s - origin for fault, _ in injected)
    return Timeline(
        steps=steps,
        faults=tuple(_measure_faults(injected, steps, moments, origin)),
        num_starts=len(starts),
        steps_again=again,
        effective_s=sum(_effective_s(steps, number, moments) for number in range(len(steps))),
    )


def _add_steps(
    events: Sequence[Event], made: dict[int, tuple[float, float]], losses: dict[int, float]
) -> None:
    """Add the steps of one rank to those of its peers: the last to end counts."""
    origin = _origin_of(events)
    for event in events:
        match event:
            case StepEvent() if origin is not None:
                end = (origin + event.at_s, sum(parts_of(event)))
                made[event.step] = max(end, made.get(event.step, end))
            case MetricsEvent(metrics={"loss": loss}):
                losses[event.step] = loss


def _origin_of(events: Sequence[Event]) -> float | None:
    """Return the Unix time at which a rank's clock is 0; None where it is not known."""
    for event in events:
        if isinstance(event, StartedEvent) and event.time_s is not None:
            return event.time_s - event.at_s
    return None


def _counted(
    ends: Mapping[int, tuple[float, float]], losses: Mapping[int, float], origin: float
) -> Iterator[TimedStep]:
    before_s = 0.0
    for step in sorted(ends):
        ended_s, took_s = ends[step][0] - origin, ends[step][1]
        yield TimedStep(
            step=step,
            began_s=before_s,
            ended_s=max(before_s, ended_s),
            took_s=took_s,
            loss=losses.get(step),
        )
        before_s = max(before_s, ended_s)


def _faults_of(ranks: RankEvents) -> Iterator[tuple[InjectedEvent, RankEvents]]:
    """Yield the faults that came, with the events of their start: one told just before the end may
    not have come."""
    for events in ranks.values():
        is_finished = any(isinstance(event, FinishedEvent) for event in events)
        for event in events:
            if isinstance(event, InjectedEvent) and (event.kind == "stop" or not is_finished):
                yield event, ranks


def _measure_faults(
    injected: Sequence[tuple[InjectedEvent, RankEvents]],
    steps: Sequence[TimedStep],
    moments: Sequence[float],
    origin: float,
) -> Iterator[FaultMeasure]:
    charged = set[int]()  # steps
    for fault, ranks in sorted(injected, key=lambda pair: pair[0].time_s):
        at_s = fault.time_s - origin
        number = bisect.bisect_right([step.ended_s for step in steps], at_s)
        step, lost_s = steps[number] if number < len(steps) else None, 0.0
        if step is not None and step.step not in charged:
            charged.add(step.step)
            lost_s = step.ended_s - step.began_s - _effective_s(steps, number, moments)
        notices = [
            (_time_of(events, event) - event.recovery_s - fault.time_s, event.recovery_s)
            for events in ranks.values()
            for event in events
            if isinstance(event, RecoveredEvent) and fault.rank in event.lost
        ]
        yield FaultMeasure(
            kind=fault.kind,
            rank=fault.rank,
            pause_s=fault.pause_s,
            at_s=at_s,
            step=fault.step,
            notice_s=max((notice for notice, _ in notices), default=None),
            recovery_s=max((recovery for _, recovery in notices), default=None),
            continue_s=None if step is None else step.ended_s - at_s,
            lost_s=lost_s,
        )


def _time_of(events: Sequence[Event], event: Event) -> float:
    """Return the Unix time of a rank's event."""
    return (_origin_of(events) or 0.0) + event.at_s


def _effective_s(steps: Sequence[TimedStep], number: int, moments: Sequence[float]) -> float:
    """Return the part of a step's interval that it needs: of an undisturbed one its own parts, of a
    disturbed one what its neighbours take."""
    step = steps[number]
    interval_s = step.ended_s - step.began_s
    if not _is_disturbed(step, moments):
        return min(step.took_s, interval_s)
    before = steps[max(0, number - NEIGHBOURS) : number]
    after = steps[number + 1 : number + 1 + NEIGHBOURS]
    for near in (before, after):
        quiet = [s.took_s for s in near if not _is_disturbed(s, moments)]
        if quiet:
            return min(median(quiet), interval_s)
    return min(step.took_s, interval_s)


def _is_disturbed(step: TimedStep, moments: Sequence[float]) -> bool:
    """moments: of the faults, in their order."""
    following = bisect.bisect_right(moments, step.began_s)
    return following < len(moments) and moments[following] <= step.ended_s
