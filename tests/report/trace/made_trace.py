"""A traced run of two ranks, of which the second is late: made by hand."""

from collections.abc import Iterator
from pathlib import Path

from phalanx.records.events import Event, SavedEvent
from phalanx.records.spans import ClockReading, TracedRank, TraceSpan, write_spans
from tests.report.made_events import FINISHED, evaluation, step, write_run
from tests.report.made_study import Job, run_of

MS = 1_000_000
STEP_S = 0.010
NUM_STEPS = 8
OTHER_CLOCK_NS = -5 * MS
"""Of rank 1: what its clock shows less than that of rank 0."""


def make_trace(folder: Path, *, without: int | None = None, hidden_s: float | None = 0.002) -> Path:
    """without: a rank that has left nothing."""
    events = [list(events_of(hidden_s))] * 2
    write_run(folder, run_of(Job("mlp", "mpi", ranks=2), "trace"), events)
    for rank in range(2):
        if rank != without:
            write_spans(folder, traced(rank), spans(rank))
    return folder


def traced(rank: int) -> TracedRank:
    readings = [ClockReading(at_ns=0, offset_ns=0), ClockReading(at_ns=10**9, offset_ns=0)]
    if rank:
        readings = [
            ClockReading(at_ns=0, offset_ns=-OTHER_CLOCK_NS, error_ns=1_500),
            ClockReading(at_ns=10**9, offset_ns=-OTHER_CLOCK_NS, error_ns=2_500),
        ]
    return TracedRank(
        rank=rank,
        size=2,
        hostname=f"node{rank}",
        process_id=7,
        began_ns=rank * OTHER_CLOCK_NS,
        readings=readings,
        dropped=3 * rank,
    )


def spans(rank: int) -> list[TraceSpan]:
    """One all-reduce a step; rank 1 comes 2 ms after rank 0, both leave 1 ms later."""
    made = []
    for number in range(NUM_STEPS):
        ended = round((number + 1) * STEP_S * 1e9) - MS + rank * OTHER_CLOCK_NS
        began = ended - (1 if rank else 3) * MS
        detail = {"group": "world", "first": 0, "size": 2, "number": number + 1, "bytes": 40}
        made.append(TraceSpan(f"all_reduce {number + 1}", "network", began, ended, detail))
    return made


def events_of(hidden_s: float | None) -> Iterator[Event]:
    for number in range(NUM_STEPS):
        yield step(
            number,
            at_s=(number + 1) * STEP_S,
            samples=64,
            data_s=0.001,
            forward_s=0.002,
            backward_s=0.003,
            communication_s=0.003,
            optimizer_s=0.001,
            hidden_s=hidden_s,
            last_bucket_s=None if hidden_s is None else 0.001,
        )
    end_s = NUM_STEPS * STEP_S
    yield evaluation(at_s=end_s + 0.02, evaluation_s=0.02, loss_sum=1.0, correct=1)
    yield SavedEvent(at_s=end_s + 0.03, epoch=0, path="here", save_s=0.01, bytes=1)
    yield FINISHED
