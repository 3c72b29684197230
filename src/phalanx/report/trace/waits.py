"""Waits between ranks. Pure.

In a collective all ranks wait for the last to arrive; a receiver waits for the sender."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from phalanx.records.spans import TraceSpan
from phalanx.report.trace.read import RankTrace

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
