"""Timeline of a training that faults disturb, from the events of its ranks. Pure.

A step counts from the last start of the run that made it: steps that a restart makes again were
lost the first time.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from phalanx.records.events import (
    Event,
    FaultKind,
    FinishedEvent,
    InjectedEvent,
    MetricsEvent,
    RecoveredEvent,
    ReplacedEvent,
    StartedEvent,
    StepEvent,
)
from phalanx.report.rank_measures import parts_of

NEIGHBOURS = 10
"""Undisturbed steps before a disturbed one, whose median says what it would have taken."""
RankEvents = Mapping[int, Sequence[Event]]
"""Events by rank, of one start of the run."""


class TimedStep(NamedTuple):
    """A step that counts."""

    step: int
    began_s: float
    """End of the step before it. Seconds since the first step began, as all times here."""
    ended_s: float
    """End on the last rank."""
    took_s: float
    """Time of its own parts, on that rank: without checkpoints and what else is between two."""
    loss: float | None


@dataclass(kw_only=True)
class Fault:
    """A fault as the ranks of its start have recorded it, and what it cost."""

    kind: FaultKind
    rank: int
    at_s: float
    step: int
    """Updates made before it."""
    recovered_s: float
    """Time at which the last survivor had a new world, or just before a further start ended its
    first step; the time of the fault where neither came."""
    notice_s: float | None
    """Seconds until the last survivor had noticed; None if nobody told."""
    recovery_s: float | None
    """Time from the notice to the new world, of the slowest survivor."""
    continue_s: float | None = None
    """Seconds until the end of the first step that counts after the recovery, or after the fault
    where there is none; None where none ended."""
    lost_s: float = 0.0
    """Time by which the steps until then took longer; of several faults in one the first has it."""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Steps and faults of a run."""

    steps: tuple[TimedStep, ...]
    faults: tuple[Fault, ...]
    num_starts: int
    steps_again: int
    """Steps that a start made that an earlier one had made already."""
    effective_s: float
    """Time spent on steps that count; a disturbed one counts as its neighbours take."""
    replaced_s: tuple[float, ...] = ()
    """Times from the notice of deaths until spares had taken the places, by the slowest rank."""

    @property
    def wall_s(self) -> float:
        """Time from the start of the first step to the end of the last."""
        return self.steps[-1].ended_s if self.steps else 0.0

    @property
    def effective_share(self) -> float | None:
        """Share of the wall-clock time that was spent on steps that count; None where a fault came
        after the last step, whose cost is not in that time."""
        if not self.steps or any(fault.continue_s is None for fault in self.faults):
            return None
        return self.effective_s / self.wall_s


def make_timeline(starts: Sequence[RankEvents]) -> Timeline:
    """starts: of the run, in their order."""
    ends: dict[int, tuple[float, float]] = {}  # step to (Unix time, seconds of its parts)
    losses: dict[int, float] = {}
    again, reached = 0, 0
    faults: list[Fault] = []
    begins: list[float] = []  # just before a further start has ended its first step
    for ranks in starts:
        made = dict[int, tuple[float, float]]()
        for events in ranks.values():
            _add_steps(events, made, losses)
        if ends and made:
            again += max(0, reached - min(made))
            begins.append(math.nextafter(made[min(made)][0], 0))
            if faults:
                faults[-1].recovered_s = begins[-1]
        own = sorted(_faults_of(ranks), key=lambda fault: fault.at_s)
        faults += own
        done = [*(fault.step for fault in own), *(step + 1 for step in made)]
        reached = max(done, default=reached)
        ends |= made
    if not ends:
        return Timeline(steps=(), faults=(), num_starts=len(starts), steps_again=0, effective_s=0.0)
    origin = ends[min(ends)][0] - ends[min(ends)][1]
    for fault in faults:
        fault.at_s, fault.recovered_s = fault.at_s - origin, fault.recovered_s - origin
    steps = tuple(_counted(ends, losses, origin))
    windows = [(fault.at_s, fault.recovered_s) for fault in faults]
    windows += [(moment - origin, moment - origin) for moment in begins]
    effective_s = [_effective_s(steps, number, windows) for number in range(len(steps))]
    _charge(faults, steps, effective_s)
    return Timeline(
        steps=steps,
        faults=tuple(faults),
        num_starts=len(starts),
        steps_again=again,
        effective_s=sum(effective_s),
        replaced_s=tuple(seconds for ranks in starts for seconds in _replaced_s(ranks)),
    )


def _replaced_s(ranks: RankEvents) -> Iterator[float]:
    """Yield as `Timeline.replaced_s`, of one start."""
    found: dict[tuple[int, ...], float] = {}
    for event in itertools.chain.from_iterable(ranks.values()):
        if isinstance(event, ReplacedEvent):
            spares = tuple(event.spares)
            found[spares] = max(event.seconds, found.get(spares, 0.0))
    yield from found.values()


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
        end, took_s = ends[step]
        ended_s = max(before_s, end - origin)
        yield TimedStep(step, before_s, ended_s, took_s, losses.get(step))
        before_s = ended_s


def _faults_of(ranks: RankEvents) -> Iterator[Fault]:
    """Yield the faults that came, in Unix time: one told just before the end may not have come."""
    told = [
        ((_origin_of(events) or 0.0) + event.at_s, event)
        for events in ranks.values()
        for event in events
        if isinstance(event, RecoveredEvent)
    ]
    for events in ranks.values():
        is_finished = any(isinstance(event, FinishedEvent) for event in events)
        for event in events:
            if isinstance(event, InjectedEvent) and (event.kind == "stop" or not is_finished):
                own = [(at, each.recovery_s) for at, each in told if event.rank in each.lost]
                noticed = max((at - recovery_s for at, recovery_s in own), default=None)
                yield Fault(
                    kind=event.kind,
                    rank=event.rank,
                    at_s=event.time_s,
                    step=event.step,
                    recovered_s=max((at for at, _ in own), default=event.time_s),
                    notice_s=None if noticed is None else noticed - event.time_s,
                    recovery_s=max((recovery_s for _, recovery_s in own), default=None),
                )


def _charge(
    faults: Sequence[Fault], steps: Sequence[TimedStep], effective_s: Sequence[float]
) -> None:
    """Add to each fault when the run continued, and the time that the steps until then lost.

    faults: in the order of time. effective_s: of each step.
    """
    ends = [step.ended_s for step in steps]
    charged = 0  # steps so far
    for fault in faults:
        first, last = (bisect.bisect_right(ends, at) for at in (fault.at_s, fault.recovered_s))
        own = range(max(first, charged), min(last + 1, len(steps)))
        charged = max(charged, own.stop)
        fault.continue_s = ends[last] - fault.at_s if last < len(steps) else None
        fault.lost_s = sum(steps[n].ended_s - steps[n].began_s - effective_s[n] for n in own)


def _effective_s(
    steps: Sequence[TimedStep], number: int, windows: Sequence[tuple[float, float]]
) -> float:
    """Return the part of a step's interval that it needs: all of it, or what the undisturbed steps
    before it take. windows: of faults, until the recovery from each."""
    step = steps[number]
    interval_s = step.ended_s - step.began_s
    if _is_disturbed(step, windows):
        for others in (reversed(steps[:number]), steps[number + 1 :]):
            quiet = (s.ended_s - s.began_s for s in others if not _is_disturbed(s, windows))
            if near := list(itertools.islice(quiet, NEIGHBOURS)):
                return min(median(near), interval_s)
    return interval_s


def _is_disturbed(step: TimedStep, windows: Sequence[tuple[float, float]]) -> bool:
    return any(begin <= step.ended_s and end > step.began_s for begin, end in windows)
