"""Sentences computed from records of loading."""

from pathlib import Path

import pytest

from phalanx.records.schema import Outcome
from phalanx.report.findings import Speed
from phalanx.report.folder import read_folder
from phalanx.report.io.findings import (
    against_torch,
    choice,
    fastest_format,
    findings,
    headline,
    study_findings,
    study_headline,
    utilisation,
)
from phalanx.report.io.folder import read_io_measure
from phalanx.report.io.study import IoStudy, read_io_study
from phalanx.report.statistics import Interval
from tests.report.io.made_io import make_io, make_io_study


def read_study(folder: Path) -> IoStudy:
    return read_io_study(read_folder(folder).study, folder)


def told(topics: object) -> str:
    return "\n".join(f"{s.label}: {s.text}" for topic in topics for s in topic.sentences)  # type: ignore[attr-defined]


def test_of_a_measurement(tmp_path: Path) -> None:
    measure = read_io_measure(make_io(tmp_path / "io", ranks=(1, 2)))
    kept = utilisation(measure, "warm")
    assert kept is not None
    assert (kept.num, kept.n) == (2, 3)
    assert kept.holds == "reach the floor of 90 %: tar shards (98.0 %) and memory maps (98.4 %)"
    assert kept.exceptions == ("many small files (46.7 %)",)
    best = fastest_format(measure, "warm")
    assert best is not None
    assert (best.subject, best.rivals, best.n) == ("memory maps", (), 3)
    rival = against_torch(measure, "warm")
    assert rival is not None and rival.interval is not None
    assert (rival.where, rival.against) == ("from memory maps", "DataLoader")
    assert rival.interval.estimate == pytest.approx(5.0)
    assert rival.verdict == "higher"
    text = told(findings(measure))
    assert "compute-bound" in text
    assert "Before each cold epoch no page of the files was in memory" in text
    assert "hdf5" in text.lower()
    assert "ext4; neither another file system" in text
    assert headline(measure).startswith(
        "Memory maps from memory: an emulated A100 is busy 98.4\N{NO-BREAK SPACE}%"
    )


def test_of_what_went_wrong(tmp_path: Path) -> None:
    failed = Outcome(status="failed", error="rank 0 failed: it is <b>broken</b>")
    measure = read_io_measure(
        make_io(tmp_path / "io", outcome=failed, wrong=3, resident_when_cold=0.4)
    )
    text = told(findings(measure))
    assert "samples were not those asked for: no rate here counts" in text
    assert "It failed: rank 0 failed" in text
    assert "Cold is not cold here: up to 40 % of the pages" in text


def test_of_a_study(tmp_path: Path) -> None:
    study = read_study(make_io_study(tmp_path / "study"))
    text = told(study_findings(study))
    assert (
        "At 500 ms per step memory maps with 1 thread, 1 batch ahead suffice: busy 99.6 %" in text
    )
    assert "memory maps below 8.16 ms per step (floor reached at 50.0 ms)" in text
    assert "many small files below 102 ms per step (floor reached at 500 ms)" in text
    assert study_headline(study).startswith(
        "resnet50 from the disk: memory maps with 1 thread, 1 batch ahead keep an A100 busy 98.2"
    )


def test_of_a_study_without_an_end(tmp_path: Path) -> None:
    study = read_study(make_io_study(tmp_path / "study", missing=True))
    assert [run.status for run in study.runs] == ["completed", "completed", "missing"]
    text = told(study_findings(study))
    assert "resnet50, cold: At 50.0 ms per step memory maps with 2 threads, 1 batch ahead" in text


def test_of_an_accelerator_that_is_too_fast(tmp_path: Path) -> None:
    measure = read_io_measure(make_io(tmp_path / "io", compute_s=0.005))
    text = choice(measure, "warm") or ""
    assert text.startswith("At 5.00 ms per step nothing reaches 90 %; the most is 57.7 %")
    assert text.endswith("with memory maps, 2 threads, 4 batches ahead.")


def test_a_gain_within_five_percent_is_none() -> None:
    rounds = {"subject": "a", "against": "b", "same_within": 0.05}
    verdicts = [
        Speed(interval=Interval(estimate=x, low=x, high=x), **rounds).verdict  # type: ignore[arg-type]
        for x in (1.04, 1.06, 0.96, 0.94)
    ]
    assert verdicts == ["unclear", "higher", "unclear", "lower"]
