"""Spans read in C and in Python are the same, and so are checksums: those of zlib."""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.packed.checked_reads import (
    ALTERED,
    INTACT,
    TRUNCATED,
    SpanBatch,
    compiled,
    crcs_of_rows,
    read_spans,
)

CONTENT = np.random.default_rng(0).bytes(3_000_000)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("rows") / "content"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["c", "arrays"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "arrays":
        monkeypatch.setattr("phalanx.data.packed.checked_reads.compiled", lambda: None)
    elif compiled() is None:
        pytest.skip("the module in C was not built")
    return str(request.param)


def spans_of(file: int, parts: list[tuple[int, int]], crcs: list[int]) -> SpanBatch:
    """parts: (offset, size)."""
    offsets, sizes = np.array(parts, np.int64).reshape(-1, 2).T.copy()
    places = np.cumsum(sizes) - sizes
    files, nowhere = np.full(len(parts), file, np.int32), np.zeros(len(parts), np.int64)
    return SpanBatch(files, nowhere, nowhere, offsets, sizes, places, np.array(crcs, np.uint32))


def test_whole_altered_and_cut_off(file: int, by: str) -> None:
    parts = [(5, 100), (105, 7), (200, 0), (len(CONTENT) - 10, 20), (1000, 1_000_000), (112, 3)]
    crcs = [zlib.crc32(CONTENT[o : o + s]) for o, s in parts]
    crcs[1] ^= 1
    out = np.zeros(sum(size for _, size in parts), np.uint8)
    outcomes = read_spans(spans_of(file, parts, crcs), out)
    assert outcomes.tolist() == [INTACT, ALTERED, INTACT, TRUNCATED, INTACT, INTACT]
    assert out[:107].tobytes() == CONTENT[5:112]
    assert out[-3:].tobytes() == CONTENT[112:115]
    assert out[127:-3].tobytes() == CONTENT[1000:1_001_000]


def test_spans_that_end_together_with_the_file(file: int, by: str) -> None:
    """Read in one go, and the file ends in the second one."""
    parts = [(len(CONTENT) - 30, 20), (len(CONTENT) - 10, 20), (len(CONTENT) + 10, 20)]
    crcs = [zlib.crc32(CONTENT[o : o + s]) for o, s in parts]
    outcomes = read_spans(spans_of(file, parts, crcs), np.zeros(60, np.uint8))
    assert outcomes.tolist() == [INTACT, TRUNCATED, TRUNCATED]


def test_a_file_that_cannot_be_read(tmp_path: Path, by: str) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    outcomes = read_spans(spans_of(folder, [(0, 1)], [0]), np.zeros(1, np.uint8))
    os.close(folder)
    assert outcomes.tolist() == [-21], "EISDIR"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2_900_000), st.integers(0, 3000)), max_size=30))
def test_any_spans(file: int, parts: list[tuple[int, int]]) -> None:
    crcs = [zlib.crc32(CONTENT[o : o + s]) for o, s in parts]
    out = np.zeros(sum(size for _, size in parts), np.uint8)
    assert not read_spans(spans_of(file, parts, crcs), out).any()
    assert out.tobytes() == b"".join(CONTENT[o : o + s] for o, s in parts)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 700), st.integers(1, 5), st.integers(0, 2_000_000))
def test_checksums_are_those_of_zlib(size: int, num_rows: int, start: int) -> None:
    rows = np.frombuffer(CONTENT, np.uint8, num_rows * size, start).reshape(num_rows, size)
    expected = [zlib.crc32(row.tobytes()) for row in rows]
    assert crcs_of_rows(np.ascontiguousarray(rows)).tolist() == expected


def test_checksums_of_every_size(file: int, by: str) -> None:
    """The ways to compute one change at 64 and 256 bytes, and what is left over has ways of its
    own; spans of more than 256 KB come in pieces."""
    parts = [(size % 67, size) for size in (*range(1200), 262_143, 262_144, 262_145, 600_001)]
    crcs = [zlib.crc32(CONTENT[o : o + s]) for o, s in parts]
    out = np.zeros(sum(size for _, size in parts), np.uint8)
    assert not read_spans(spans_of(file, parts, crcs), out).any()


def test_spans_outside_of_the_output_are_refused(file: int) -> None:
    module = compiled()
    if module is None:
        pytest.skip("the module in C was not built")
    spans = spans_of(file, [(0, 10)], [0])
    with pytest.raises(ValueError, match="do not fit"):
        read_spans(spans, np.zeros(9, np.uint8))
    with pytest.raises(ValueError, match="do not fit"):
        read_spans(spans._replace(offsets=np.array([-1])), np.zeros(10, np.uint8))
