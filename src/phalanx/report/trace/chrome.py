"""Traces as the JSON that Perfetto and chrome://tracing open, and waits between ranks.

In a collective all ranks wait for the last to arrive; a receiver waits for the sender.

A process a rank, a thread a lane. Google's "Trace Event Format" (2016): complete events (`X`),
names (`M`), and arrows (`s`, `f`) from the rank that came last to those that waited for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.errors import UserError
from phalanx.records.files import write_atomically
from phalanx.records.spans import TraceSpan
from phalanx.report.trace.read import RankTrace, Traces, is_traced, read_traces

SHORTEST_NS = 1_000
"""Less is the collective itself, and the error of the clocks."""


class Wait(NamedTuple):
    """`rank` waited for `late` within its own `span`."""

    rank: int
    late: int
    began_ns: int
    ended_ns: int
    span: TraceSpan
    late_span: TraceSpan | None
    """Span of the same collective; None where a message was waited for."""


def waits(ranks: Mapping[int, RankTrace]) -> list[Wait]:
    """Return the waits of messages and collectives, in the order of time.

    Only collectives with a span from every member of their group count. Clocks have an error: a
    wait never begins before its rank arrives, nor lasts longer than its collective.
    """
    found = []
    for members in _collectives(ranks).values():
        late, late_span = max(members.items(), key=lambda item: (item[1].began_ns, item[0]))
        for rank, span in members.items():
            ended_ns = min(late_span.began_ns, span.ended_ns)
            if rank != late and ended_ns - span.began_ns >= SHORTEST_NS:
                found.append(Wait(rank, late, span.began_ns, ended_ns, span, late_span))
    found += _for_messages(ranks)
    return sorted(found, key=lambda wait: (wait.began_ns, wait.rank))


def _for_messages(ranks: Mapping[int, RankTrace]) -> list[Wait]:
    return [
        Wait(rank, int(span.detail["waited for"]), span.began_ns, span.ended_ns, span, None)
        for rank, trace in ranks.items()
        for span in trace.spans
        if span.detail is not None and "waited for" in span.detail
    ]


def waited_s(found: Iterable[Wait], rank: int, since_ns: int, until_ns: int) -> dict[int, float]:
    """Return the seconds that `rank` waited for each late rank, the most first.

    Waits that began between `since_ns` and `until_ns` count."""
    by_late: dict[int, float] = {}
    for wait in found:
        if wait.rank == rank and since_ns <= wait.began_ns < until_ns:
            took_s = (wait.ended_ns - wait.began_ns) / 1e9
            by_late[wait.late] = by_late.get(wait.late, 0.0) + took_s
    return dict(sorted(by_late.items(), key=lambda item: -item[1]))


def _collectives(ranks: Mapping[int, RankTrace]) -> dict[tuple[object, ...], dict[int, TraceSpan]]:
    """Return the spans of each collective by rank, keyed by group and number.

    Collectives without a span from every member are left out.
    """
    found: dict[tuple[object, ...], dict[int, TraceSpan]] = {}
    sizes: dict[tuple[object, ...], int] = {}
    for rank, trace in ranks.items():
        for span in trace.spans:
            detail = span.detail
            if detail is not None and "group" in detail and "number" in detail:
                key = (detail["group"], detail.get("first"), detail["number"])
                found.setdefault(key, {})[rank] = span
                sizes[key] = int(detail.get("size", 0))
    return {key: members for key, members in found.items() if len(members) == sizes[key] > 1}


LANES = ("compute", "network", "data", "optimizer")
"""Lanes from the top; others are below."""
PREDICTED = "planned, not run: all times are predictions of phalanx plan"
Event = dict[str, object]
Row = tuple[str, list[TraceSpan]]


def chrome_trace(traces: Traces) -> dict[str, object]:
    """Return the content of `trace.json`."""
    found = waits(traces.ranks)
    start_ns = min(
        (trace.spans[0].began_ns for trace in traces.ranks.values() if trace.spans), default=0
    )
    events: list[Event] = []
    threads: dict[tuple[int, TraceSpan], int] = {}
    for rank, trace in traces.ranks.items():
        own = [wait for wait in found if wait.rank == rank and wait.late_span is not None]
        events += _process(rank, trace)
        for thread, (lane, spans) in enumerate(rows([*trace.spans, *map(_waiting, own)])):
            events += _thread(rank, thread, lane)
            for span in spans:
                threads[rank, _key(span)] = thread
                events.append(_complete(rank, thread, span, start_ns))
    for number, wait in enumerate(found):
        events += _arrow(number, wait, threads, start_ns)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": metadata(traces),
    }


def metadata(traces: Traces) -> dict[str, str]:
    """Return the trace's metadata, with the limits of its accuracy."""
    ranks = traces.ranks
    dropped = {r: t.traced.dropped for r, t in ranks.items() if t.traced.dropped}
    steps = {r: t.dropped_steps for r, t in ranks.items() if t.dropped_steps}
    return {
        **({"status": PREDICTED} if traces.is_planned else {}),
        "clock error": clock_error(ranks),
        "missing ranks": "; ".join(f"{who}: {why}" for who, why in traces.gaps) or "none",
        "dropped spans, the earliest": _listed(dropped) or "none",
        "dropped steps, the earliest": _listed(steps) or "none",
        "parts of a step": "drawn one after the other, in the order of measurement",
    }


def clock_error(ranks: Mapping[int, RankTrace]) -> str:
    """Return the error bound of ranks' times relative to rank 0, in words."""
    errors = [reading.error_ns for trace in ranks.values() for reading in trace.traced.readings]
    if any(error is None for error in errors):
        return "unknown: ranks on several machines, whose clocks were not compared"
    worst = max((error for error in errors if error is not None), default=0)
    if not worst:
        return "none: all ranks read the clock of one machine"
    once = any(len(trace.traced.readings) < 2 for trace in ranks.values())
    drift = "; drift unknown: compared only at the start" if once else ""
    return f"at most {worst / 1e3:.1f} µs{drift}"


def rows(spans: Sequence[TraceSpan]) -> list[Row]:
    """Threads: a lane, and more of its name where its spans overlap without lying in one another,
    which a thread cannot show."""
    lanes = sorted({span.lane for span in spans}, key=_place)
    made: list[Row] = []
    for lane in lanes:
        own = sorted(
            (span for span in spans if span.lane == lane),
            key=lambda span: (span.began_ns, -span.ended_ns),
        )
        for number, row in enumerate(nested(own)):
            made.append((lane if number == 0 else f"{lane} {number + 1}", row))
    return made


def nested(spans: Sequence[TraceSpan]) -> list[list[TraceSpan]]:
    """Spread over as few rows as the first that fits each span gives: in a row two spans lie apart,
    or one within the other. spans: in the order of their beginning, the longest first."""
    made: list[list[TraceSpan]] = []
    open_until: list[list[int]] = []  # ends of the open spans, from the outside in
    for span in spans:
        for row, ends in zip(made, open_until, strict=True):
            while ends and ends[-1] <= span.began_ns:
                ends.pop()
            if not ends or span.ended_ns <= ends[-1]:
                row.append(span)
                ends.append(span.ended_ns)
                break
        else:
            made.append([span])
            open_until.append([span.ended_ns])
    return made


def _place(lane: str) -> tuple[int, str]:
    return (LANES.index(lane) if lane in LANES else len(LANES), lane)


def _waiting(wait: Wait) -> TraceSpan:
    detail = dict(wait.span.detail or {})
    return TraceSpan(
        f"waiting for rank {wait.late}", wait.span.lane, wait.began_ns, wait.ended_ns, detail
    )


def _key(span: TraceSpan) -> TraceSpan:
    return span._replace(detail=None)


def _process(rank: int, trace: RankTrace) -> list[Event]:
    return _named("process", rank, 0, f"rank {rank} on {trace.traced.hostname}", rank)


def _thread(rank: int, thread: int, lane: str) -> list[Event]:
    return _named("thread", rank, thread, lane, thread)


def _named(kind: str, rank: int, thread: int, name: str, place: int) -> list[Event]:
    """Return the name of a process or a thread, and its place from the top."""
    of: Event = {"ph": "M", "pid": rank, "tid": thread}
    return [
        {**of, "name": f"{kind}_name", "args": {"name": name}},
        {**of, "name": f"{kind}_sort_index", "args": {"sort_index": place}},
    ]


def _complete(rank: int, thread: int, span: TraceSpan, start_ns: int) -> Event:
    return {
        "ph": "X",
        "pid": rank,
        "tid": thread,
        "name": span.name,
        "cat": span.lane,
        "ts": (span.began_ns - start_ns) / 1e3,
        "dur": max(0, span.ended_ns - span.began_ns) / 1e3,
        "args": span.detail or {},
    }


def _arrow(
    number: int, wait: Wait, threads: Mapping[tuple[int, TraceSpan], int], start_ns: int
) -> list[Event]:
    """Return an arrow from the collective of the last rank to that of the waiting one."""
    if (
        wait.late_span is None
        or not wait.late_span.began_ns <= wait.ended_ns <= wait.late_span.ended_ns
    ):
        return []  # a message, or the clocks do not allow it
    at_us = (wait.ended_ns - start_ns) / 1e3
    from_thread = threads[wait.late, _key(wait.late_span)]
    to_thread = threads[wait.rank, _key(wait.span)]
    common: Event = {"cat": "wait", "name": "came last", "id": number, "ts": at_us}
    return [
        {"ph": "s", "pid": wait.late, "tid": from_thread, **common},
        {"ph": "f", "bp": "e", "pid": wait.rank, "tid": to_thread, **common},
    ]


def _listed(found: Mapping[int, object]) -> str:
    return "; ".join(f"rank {rank}: {what}" for rank, what in found.items())


TRACE_NAME = "trace.json"


def write_missing_trace(folder: Path) -> None:
    """Merge the spans of a run that failed under the user's launcher, where nothing else does."""
    if is_traced(folder) and not (folder / TRACE_NAME).exists():
        write_trace(folder)


def write_trace(folder: Path) -> tuple[Path, Traces]:
    """Merge what the ranks have left.

    Raises: UserError when there is nothing, or it cannot be written.
    """
    traces, path = read_traces(folder), folder / TRACE_NAME
    content = msgspec.json.encode(chrome_trace(traces))
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"the trace cannot be written to {path}: {error.strerror}") from error
    return path, traces
