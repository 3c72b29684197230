"""The page of a compression study, and what the terminal shows of it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.report.compression.charts import bandwidth_rows
from phalanx.report.compression.findings import costs_of, findings, headline, steps_in
from phalanx.report.compression.fit import CompressionPoint, fit_step_time
from phalanx.report.compression.page import content_of
from phalanx.report.compression.study_data import MEMORY, CompressionStudyData, read_study_data
from phalanx.report.compression.summary import print_summary
from phalanx.report.compression.tables import compressors
from phalanx.report.findings import AccuracyDifference
from phalanx.report.page import write_report
from tests.report.compression.made_compression import BYTES, make, step_s


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("compression") / "made")


@pytest.fixture(scope="module")
def made(study: Path) -> CompressionStudyData:
    return read_study_data(study)


def test_cells_have_the_median_step_of_the_slower_rank(made: CompressionStudyData) -> None:
    assert made.places == [MEMORY, "10Gbit/s", "1Gbit/s,1ms", "100Mbit/s"]
    cell = made.cell("int8", "1Gbit/s,1ms")
    assert cell is not None
    assert cell.step_s == pytest.approx(step_s("int8", "1Gbit/s,1ms"))
    assert cell.sent_bytes == BYTES["int8"]
    assert made.compression_ratio("bf16") == 2
    whole, half = step_s("none", "1Gbit/s,1ms"), step_s("bf16", "1Gbit/s,1ms")
    assert made.step_speed_up("bf16", "1Gbit/s,1ms") == pytest.approx(whole / half)


def test_the_fit_finds_what_the_steps_were_made_of(made: CompressionStudyData) -> None:
    fit = made.fit
    assert fit is not None
    assert fit.slope == pytest.approx(1)
    assert fit.worst < 1e-9
    assert fit.bases_s == pytest.approx(
        {"none": 0.010, "bf16": 0.012, "int8": 0.016, "topk": 0.011}
    )
    assert made.break_even_bandwidth("bf16") == pytest.approx(8e6 / 2e-3)  # bytes saved ÷ coding


def test_who_costs_nothing_pays_always_and_who_saves_nothing_never() -> None:
    points = [
        CompressionPoint(
            compressor=name, sent_bytes=sent, bandwidth_bytes_per_s=b, step_s=base + sent / b
        )
        for name, sent, base in (("none", 8.0, 5.0), ("free", 4.0, 4.0), ("larger", 9.0, 6.0))
        for b in (1.0, 10.0)
    ]
    fit = fit_step_time(points)
    assert fit is not None
    assert fit.break_even_bandwidth("free", "none") == float("inf")
    assert fit.break_even_bandwidth("larger", "none") is None
    assert fit_step_time(points[:1]) is None


def test_accuracy_is_held_within_the_spread_of_the_seeds(made: CompressionStudyData) -> None:
    spread = made.accuracy("none")
    assert spread is not None
    assert (spread.mean, spread.low, spread.high) == pytest.approx((0.970, 0.969, 0.971))
    assert [made.holds_accuracy(name) for name in BYTES] == (
        ["holds", "holds", "holds", "is below"]
    )


def test_findings_of_places_and_compressors(made: CompressionStudyData) -> None:
    speeds = steps_in(made, "1Gbit/s,1ms")
    assert [(speed.subject, speed.verdict, speed.n) for speed in speeds] == [
        (name, "higher", 3) for name in ("top-k", "int8", "bf16")
    ]
    estimates = [speed.interval.estimate for speed in speeds if speed.interval]
    assert estimates == pytest.approx([10.18, 2.83, 1.82], abs=0.01)
    assert {speed.verdict for speed in steps_in(made, MEMORY)} == {"lower"}
    lost, pays = costs_of(made, "topk")
    assert isinstance(lost, AccuracyDifference)
    assert lost.interval is not None
    assert lost.verdict == "is below"
    assert lost.interval.estimate == pytest.approx(-0.03)
    assert isinstance(pays, str)
    held, pays = costs_of(made, "bf16")
    assert isinstance(held, AccuracyDifference) and held.verdict == "holds"
    assert pays == "it pays below 32 Gbit/s: it costs 2.00 ms per step"
    assert re.fullmatch(
        r"Int8 makes steps on a link of 1Gbit/s,1ms 2\.83\u00d7 \(2\.\d\d\u20133\.\d\d\) as fast "
        r"and holds the accuracy, to 0\.5 points",
        content_of(made).headline,
    )


def test_no_accuracy_is_claimed_that_nobody_measured(tmp_path: Path) -> None:
    """All top-k trainings had failed: `10.2 times as fast and holds the accuracy`."""
    made = read_study_data(make(tmp_path / "s", failed="memory-topk"))
    assert headline(made).startswith("Int8 makes steps")
    alone = read_study_data(make(tmp_path / "alone", failed="memory-"))
    assert headline(alone).endswith("as fast; its accuracy was not measured")
    titles = {topic.title: topic for topic in findings(made)}
    assert titles["Not completed"].sentences[0].text.startswith("3 of 24 runs: 3 failed")


def test_of_one_seed_no_verdict_is_given(tmp_path: Path) -> None:
    made = read_study_data(make(tmp_path / "s", seeds=(0,)))
    finding = costs_of(made, "bf16")[0]
    assert isinstance(finding, AccuracyDifference)
    assert (finding.verdict, finding.interval) == ("unclear", None)
    assert headline(made).endswith("its effect on the accuracy is unclear")


def test_lines_and_crossings_are_drawn(made: CompressionStudyData) -> None:
    rows = bandwidth_rows(made)
    kinds = [row["kind"] for row in rows]
    assert kinds.count("measured") == 12
    crossings = {row["strategy"]: row["link"] for row in rows if row["kind"] == "begins to pay"}
    assert crossings == {"bf16": "32 Gbit/s", "int8": "15.9 Gbit/s"}


def test_a_row_of_the_table(made: CompressionStudyData) -> None:
    table = compressors(made)
    named = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    row = next(row for row in named if row["sent as"] == "int8")
    assert row["fewer"] == "3.9"
    assert row["100Mbit/s (ms)"] == "344 (3.75)"
    assert row["begins to pay"] == "below 15.9 Gbit/s"


def test_the_page_and_the_terminal_show_it(study: Path, tmp_path: Path) -> None:
    text = write_report(study, tmp_path / "report.html").read_text()
    assert "holds the accuracy" in text
    for title in ("Compressors", "Fit", "Runs"):
        assert f">{title}</h3>" in text
    console = Console(record=True, width=80, soft_wrap=True)
    print_summary(study, console)
    text = console.export_text()
    assert "ays below 32 Gbit/s" in text
    assert "344 (3.75)" in text  # whole also where 80 columns are all there is
    assert "That is no line" not in text


def test_a_fit_that_is_none_says_so(made: CompressionStudyData) -> None:
    """Steps of a busy machine were 39 % off the line, yet bandwidths had three digits."""
    rough = replace(
        made,
        cells=tuple(
            replace(cell, step_s=cell.step_s * (1.8 if cell.place == "1Gbit/s,1ms" else 1))
            for cell in made.cells
        ),
    )
    text = " ".join(s.text for topic in findings(rough) for s in topic.sentences)
    assert "That is no line" in text


@pytest.mark.parametrize("links", [True, False])
def test_runs_that_failed_and_links_that_were_not_asked_for(links: bool, tmp_path: Path) -> None:
    failed = "1Gbit-s-1ms-none-s0" if links else "memory-none-s0"
    folder = make(tmp_path / "study", links=links, failed=failed)
    text = write_report(folder).read_text()
    assert "<b>lost</b>" not in text
    assert "&lt;b&gt;lost&lt;/b&gt;" in text
