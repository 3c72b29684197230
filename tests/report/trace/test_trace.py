"""Traces of ranks, merged: clocks, waits, rows and what Perfetto asks of them."""

import json
from collections import defaultdict
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from phalanx.errors import UserError
from phalanx.records.spans import ClockReading, TraceSpan, spans_file
from phalanx.report.format import percent
from phalanx.report.trace.chrome import chrome_trace, clock_error, nested, rows, waits, write_trace
from phalanx.report.trace.read import offset_at, read_traces
from phalanx.report.trace.show import show_trace, table
from tests.report.trace.made_trace import MS, NUM_STEPS, make_trace


def test_offsets_are_linear_between_readings() -> None:
    readings = [ClockReading(at_ns=100, offset_ns=10), ClockReading(at_ns=300, offset_ns=30)]
    assert [offset_at(readings, at) for at in (0, 100, 200, 300, 900)] == [10, 10, 20, 30, 30]
    assert offset_at(readings[:1], 10**9) == 10
    assert offset_at([], 5) == 0


def test_the_others_wait_for_the_rank_that_comes_last(tmp_path: Path) -> None:
    traces = read_traces(make_trace(tmp_path))
    found = waits(traces.ranks)
    assert [(wait.rank, wait.late) for wait in found] == [(0, 1)] * NUM_STEPS
    assert {wait.ended_ns - wait.began_ns for wait in found} == {2 * MS}
    row, other = table(traces)
    assert row.waited_s == {1: pytest.approx(0.002)}
    assert other.waited_s == {}
    assert row.num_steps == NUM_STEPS - 3
    assert sum(row.parts_s) == pytest.approx(0.010)


def test_the_parts_of_a_step_follow_each_other(tmp_path: Path) -> None:
    trace = read_traces(make_trace(tmp_path)).ranks[1]
    own = [span for span in trace.spans if (span.detail or {}).get("step") == 4]
    names = ["data", "forward", "backward", "exposed communication", "optimizer"]
    assert [span.name for span in own] == names
    assert own[0].began_ns == 40 * MS
    assert own[-1].ended_ns == 50 * MS
    for before, after in pairwise(own):
        assert before.ended_ns == after.began_ns
    assert {"evaluation", "checkpoint"} <= {span.name for span in trace.spans}


def test_a_file_that_perfetto_opens(tmp_path: Path) -> None:
    path, _ = write_trace(make_trace(tmp_path))
    trace = json.loads(path.read_bytes())
    events: list[dict[str, Any]] = trace["traceEvents"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    by_thread = defaultdict(list)
    for event in events:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            by_thread[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    assert set(by_thread) == set(named)
    assert set(named.values()) == {"compute", "network", "data", "optimizer"}
    for slices in by_thread.values():
        check_nested(slices)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == NUM_STEPS
    assert all(start["ts"] <= ends[number]["ts"] for number, start in starts.items())
    waiting = [e for e in events if e["name"] == "waiting for rank 1"]
    assert len(waiting) == NUM_STEPS
    assert {e["pid"] for e in waiting} == {0}
    about = trace["otherData"]
    assert about["clock error"] == "at most 2.5 µs"
    assert about["dropped spans, the earliest"] == "rank 1: 3"


def check_nested(slices: list[tuple[float, float]]) -> None:
    """In microseconds, of which the third decimal is rounded."""
    open_until: list[float] = []
    for began, took in sorted(slices, key=lambda piece: (piece[0], -piece[1])):
        while open_until and open_until[-1] <= began + 1e-3:
            open_until.pop()
        assert not open_until or began + took <= open_until[-1] + 1e-3
        open_until.append(began + took)


@given(
    st.lists(
        st.builds(
            lambda began, took, lane: TraceSpan("x", lane, began, began + took),
            st.integers(0, 50),
            st.integers(0, 20),
            st.sampled_from(["network", "compute", "buckets"]),
        )
    )
)
def test_rows_hold_every_span_once_and_none_overlaps(spans: list[TraceSpan]) -> None:
    made = rows(spans)
    assert sorted(span for _, row in made for span in row) == sorted(spans)
    for _, row in made:
        check_nested([(span.began_ns, span.ended_ns - span.began_ns) for span in row])


def test_spans_that_overlap_get_a_row_of_their_own() -> None:
    first, within, beside = (
        TraceSpan("a", "n", 0, 10),
        TraceSpan("b", "n", 2, 5),
        TraceSpan("c", "n", 4, 12),
    )
    assert nested([first, within, beside]) == [[first, within], [beside]]
    names = [name for name, _ in rows([first, within, beside])]
    assert names == ["n", "n 2"]


def test_a_rank_that_left_nothing_is_named(tmp_path: Path) -> None:
    traces = read_traces(make_trace(tmp_path, without=1))
    assert list(traces.ranks) == [0]
    assert traces.missing == {1: "it left no spans; it may have been killed"}
    assert waits(traces.ranks) == []
    shown = chrome_trace(traces)["otherData"]
    assert "rank 1: it left no spans" in shown["missing ranks"]  # type: ignore[index]


def test_a_damaged_rank_is_named(tmp_path: Path) -> None:
    make_trace(tmp_path)
    path = spans_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-10])
    traces = read_traces(tmp_path)
    assert list(traces.ranks) == [1]
    assert "is damaged" in traces.missing[0]


def test_nothing_to_merge(tmp_path: Path) -> None:
    make_trace(tmp_path, without=1)
    spans_file(tmp_path, 0).unlink()
    with pytest.raises(UserError, match="holds no trace: make one with `phalanx trace`"):
        read_traces(tmp_path)
    console = Console(file=StringIO())
    show_trace(tmp_path, console)  # says nothing, breaks nothing
    with pytest.raises(UserError, match=r"run\.json"):
        read_traces(tmp_path / "nowhere")


def test_what_the_terminal_shows(tmp_path: Path) -> None:
    shown = StringIO()
    show_trace(make_trace(tmp_path), Console(file=shown, width=80))
    lines = shown.getvalue().splitlines()
    text = " ".join(" ".join(lines).split())
    assert "2.00 (1)" in text
    assert "clock error: at most 2.5 µs" in text
    hidden, ceiling = percent(0.4, 0), percent(0.6, 0)
    assert f"{hidden} of the communication is hidden behind backward, of at most {ceiling} " in text
    assert "trace.json" in "".join(lines)


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ([[0, 0], [0, 0]], "none: all ranks read the clock of one machine"),
        ([[0, 0], [1_500]], "at most 1.5 µs; drift unknown"),
        ([[0], [None]], "unknown"),
    ],
)
def test_the_error_of_the_clocks(tmp_path: Path, errors: Any, text: str) -> None:
    ranks = {}
    for rank, trace in read_traces(make_trace(tmp_path)).ranks.items():
        readings = [ClockReading(at_ns=0, offset_ns=0, error_ns=error) for error in errors[rank]]
        new = msgspec.structs.replace(trace.traced, readings=readings)
        ranks[rank] = type(trace)(traced=new, spans=trace.spans, steps=trace.steps)
    assert clock_error(ranks).startswith(text)
