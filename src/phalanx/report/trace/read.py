"""Spans of all ranks of a traced run, on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import UserError
from phalanx.records.events import ActionEvent, EvaluationEvent, Event, SavedEvent, StepEvent
from phalanx.records.files import rank_file, read_events, read_run
from phalanx.records.schema import Run
from phalanx.records.spans import ClockReading, TracedRank, TraceSpan, read_spans, spans_file

MOST_STEPS = 5_000
"""Shown of one rank, the latest: a page of Perfetto becomes slow with more."""

KILLED = "it left no spans; it may have been killed"
NOT_IMAGINED = "a plan keeps the spans of its first ranks alone"
COMPUTE, OPTIMIZER, DATA = "compute", "optimizer", "data"


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """One rank, on the clock of rank 0."""

    traced: TracedRank
    spans: tuple[TraceSpan, ...]
    steps: tuple[StepEvent, ...]
    """Steps whose parts are among the spans."""
    dropped_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Traces:
    ranks: Mapping[int, RankTrace]
    missing: Mapping[int, str]
    """Ranks of which there is nothing, and why."""
    is_planned: bool = False

    @property
    def gaps(self) -> list[tuple[str, str]]:
        """Return the missing ranks in words, those in a row with one reason together."""
        found: list[tuple[int, int, str]] = []
        for rank, why in sorted(self.missing.items()):
            first = rank
            if found and found[-1][1:] == (rank - 1, why):
                first, *_ = found.pop()
            found.append((first, rank, why))
        return [(f"rank {a}" if a == b else f"ranks {a} to {b}", why) for a, b, why in found]


def is_traced(folder: Path) -> bool:
    return any(folder.glob("spans-*.jsonl"))


def read_traces(folder: Path) -> Traces:
    """A rank whose file is missing or damaged does not keep the others from being shown.

    Raises: UserError when no rank has left anything.
    """
    ranks, missing = {}, {}
    run = _run(folder)
    is_planned = run.outcome.status == "planned"
    for rank in range(run.setting.ranks + run.setting.num_spares):
        path = spans_file(folder, rank)
        try:
            traced, spans = read_spans(path)
            events = rank_file(folder, rank)
            ranks[rank] = rank_trace(traced, spans, read_events(events) if events.exists() else ())
        except FileNotFoundError:
            missing[rank] = NOT_IMAGINED if is_planned else KILLED
        except (ValueError, OSError) as error:
            missing[rank] = str(error)
    if not ranks:
        raise UserError(
            f"{folder} holds no trace: make one with `phalanx trace`, or `phalanx train --trace`"
        )
    return Traces(ranks=ranks, missing=missing, is_planned=is_planned)


def _run(folder: Path) -> Run:
    try:
        return read_run(folder)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error


def rank_trace(
    traced: TracedRank, spans: Iterable[TraceSpan], events: Iterable[Event]
) -> RankTrace:
    """Spans and what the records say, on the clock of rank 0. Pure."""
    everything = list(events)
    steps = [event for event in everything if isinstance(event, StepEvent)]
    shown = steps[-MOST_STEPS:]
    own = [*spans, *of_records(traced.began_ns, everything, shown)]
    aligned = [_shifted(span, offset_at(traced.readings, span.began_ns)) for span in own]
    aligned += _of_actions(everything)  # they are on rank 0's clock from the first
    return RankTrace(
        traced=traced,
        spans=tuple(sorted(aligned, key=lambda span: (span.began_ns, -span.ended_ns))),
        steps=tuple(shown),
        dropped_steps=len(steps) - len(shown),
    )


def offset_at(readings: Sequence[ClockReading], at_ns: int) -> int:
    """Return the offset to the clock of rank 0: linear between two readings, constant with one."""
    if not readings:
        return 0
    first, last = readings[0], readings[-1]
    if last.at_ns <= first.at_ns:
        return first.offset_ns
    share = (at_ns - first.at_ns) / (last.at_ns - first.at_ns)
    return round(first.offset_ns + min(max(share, 0.0), 1.0) * (last.offset_ns - first.offset_ns))


def of_records(
    began_ns: int, events: Sequence[Event], shown: Sequence[StepEvent]
) -> list[TraceSpan]:
    """The parts of every step, one after the other in the order in which they were measured; the
    evaluations and checkpoints. began_ns: that `at_s` counts from."""
    staged = {event.step for event in events if isinstance(event, ActionEvent)}
    made = []
    for step in shown:
        made += _of_step(began_ns, step, with_passes=step.step not in staged)
    for event in events:
        match event:
            case EvaluationEvent():
                made.append(_ending(began_ns, event.at_s, event.evaluation_s, "evaluation"))
            case SavedEvent():
                made.append(_ending(began_ns, event.at_s, event.save_s, "checkpoint"))
            case _:
                pass
    return made


def _of_step(began_ns: int, step: StepEvent, *, with_passes: bool) -> list[TraceSpan]:
    parts = [
        ("data", DATA, step.data_s, True),
        ("forward", COMPUTE, step.forward_s, with_passes),
        ("backward", COMPUTE, step.backward_s, with_passes),
        ("exposed communication", COMPUTE, step.communication_s, with_passes),
        ("optimizer", OPTIMIZER, step.optimizer_s, True),
    ]
    ended_ns = began_ns + round(step.at_s * 1e9)
    at_ns = ended_ns - round(sum(part[2] for part in parts) * 1e9)
    made = []
    for name, lane, took_s, is_shown in parts:
        end_ns = min(ended_ns, at_ns + round(took_s * 1e9))
        if is_shown and end_ns > at_ns:
            made.append(TraceSpan(name, lane, at_ns, end_ns, {"step": step.step}))
        at_ns = end_ns
    return made


def _of_actions(events: Sequence[Event]) -> list[TraceSpan]:
    return [
        TraceSpan(
            f"{event.kind} {event.micro_batch}",
            COMPUTE,
            round(event.began_s * 1e9),
            round(event.ended_s * 1e9),
            {"step": event.step, "stage": event.stage, "micro-batch": event.micro_batch},
        )
        for event in events
        if isinstance(event, ActionEvent)
    ]


def _ending(began_ns: int, at_s: float, took_s: float, name: str) -> TraceSpan:
    ended_ns = began_ns + round(at_s * 1e9)
    return TraceSpan(name, COMPUTE, ended_ns - round(took_s * 1e9), ended_ns)


def _shifted(span: TraceSpan, offset_ns: int) -> TraceSpan:
    return span._replace(began_ns=span.began_ns + offset_ns, ended_ns=span.ended_ns + offset_ns)
