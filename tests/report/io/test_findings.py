"""Claims computed from records of loading."""

from pathlib import Path

import pytest

from phalanx.records.schema import Outcome
from phalanx.report.loading import (
    Ways,
    against_torch,
    choice,
    compare_rounds,
    fastest_format,
    utilisation,
)
from phalanx.report.statistics import Interval
from tests.report.io.made_io import make_io, make_io_study
from tests.report.made_view import check_claims, read


def told(folder: Path) -> str:
    content, _ = read(folder)
    check_claims(content)
    return "\n".join(f"{label}: {text}" for label, text in [*content.claims, *content.conditions])


def warm(folder: Path) -> Ways:
    return read(folder)[1][0].by_panel["from memory (warm)"]


def test_of_a_measurement(tmp_path: Path) -> None:
    folder = make_io(tmp_path / "io", ranks=(1, 2))
    ways = warm(folder)
    assert utilisation(ways) == (
        "2 of 3 formats reach the floor of 90 %: tar shards (98.0 %) and memory maps (98.4 %); not "
        "many small files (46.7 %)"
    )
    best = fastest_format(ways)
    assert best is not None
    assert best.startswith(
        "memory maps is the fastest of 3 formats: 12,255 samples/s with 2 thread"
    )
    assert against_torch(ways) == (
        "Phalanx from memory maps: 5.00× (rounds 5.00–5.00) as fast as DataLoader"
    )
    text = told(folder)
    assert "compute-bound" in text
    assert "Before each cold epoch no page of the files was cached" in text
    assert "hdf5" in text.lower()
    assert "ext4; other file systems (such as network ones)" in text
    headline = read(folder)[0].headline
    assert headline == "resnet50: A100 98.4 % busy with memory maps from memory"


def test_of_what_went_wrong(tmp_path: Path) -> None:
    failed = Outcome(status="failed", error="rank 0 failed: it is <b>broken</b>")
    text = told(make_io(tmp_path / "io", outcome=failed, wrong=3, resident_when_cold=0.4))
    assert "samples were not the requested ones: no rate here is valid" in text
    assert "io: rank 0 failed" in text
    assert "The cache was not cold: up to 40 % of the pages" in text


def test_of_a_study(tmp_path: Path) -> None:
    folder = make_io_study(tmp_path / "study")
    text = told(folder)
    assert (
        "at 500 ms per step memory maps with 1 thread, 1 batch ahead suffice: busy 99.6 %" in text
    )
    assert "memory maps below 8.16 ms per step (floor reached at 50.0 ms)" in text
    assert "many small files below 102 ms per step (floor reached at 500 ms)" in text
    assert read(folder)[0].headline == "resnet50: A100 98.2 % busy with memory maps from disk"


def test_of_a_study_without_an_end(tmp_path: Path) -> None:
    folder = make_io_study(tmp_path / "study", missing=True)
    text = told(folder)
    assert "Not completed: 1 of 3 runs: 1 missing (resnet50-compute-1)." in text
    wanted = "from the disk (cold): at 50.0 ms per step memory maps with 2 threads, 1 batch ahead"
    assert f"resnet50, {wanted}" in text


def test_of_an_accelerator_that_is_too_fast(tmp_path: Path) -> None:
    text = choice(warm(make_io(tmp_path / "io", compute_s=0.005))) or ""
    assert text.startswith("at 5.00 ms per step no format reaches 90 %; the best is 57.7 %")
    assert text.endswith("with memory maps, 2 threads, 4 batches ahead")


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1.04, "No difference between a and b"),
        (1.06, "a: 1.06× (rounds 1.06–1.06) as fast as b"),
        (0.96, "No difference between a and b"),
        (0.94, "a: 1.06× (rounds 1.06–1.06) slower than b"),
    ],
)
def test_a_gain_within_five_percent_is_none(factor: float, words: str) -> None:
    interval = Interval(estimate=factor, low=factor, high=factor)
    assert compare_rounds("a", "b", interval).startswith(words)
