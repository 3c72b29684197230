"""Spans in memory, and the file that a rank leaves."""

from pathlib import Path

import pytest

from phalanx.records.spans import (
    ClockReading,
    SpanRecorder,
    TracedRank,
    TraceSpan,
    read_spans,
    spans_file,
    write_spans,
)

TRACED = TracedRank(
    rank=1,
    size=2,
    hostname="vm",
    process_id=7,
    began_ns=5,
    readings=[ClockReading(at_ns=1, offset_ns=2, error_ns=None)],
)


def test_the_latest_are_kept_and_the_others_counted() -> None:
    spans = SpanRecorder(most=3)
    for number in range(5):
        spans.add(str(number), "network", number, number + 1)
    assert spans.dropped == 2
    assert [span.name for span in spans.take()] == ["2", "3", "4"]
    assert spans.take() == []


def test_what_is_written_is_read(tmp_path: Path) -> None:
    spans = [
        TraceSpan("barrier 1", "network", 10, 12, {"group": "world", "number": 1, "bytes": 0.5}),
        TraceSpan("forward", "compute", 12, 20),
    ]
    write_spans(tmp_path, TRACED, spans)
    assert read_spans(spans_file(tmp_path, 1)) == (TRACED, spans)


@pytest.mark.parametrize("content", ["", "{", '{"rank":1}', "[1]\n[2]"])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    path = spans_file(tmp_path, 0)
    path.write_text(content)
    with pytest.raises(ValueError, match=r"spans-0.jsonl is damaged"):
        read_spans(path)
