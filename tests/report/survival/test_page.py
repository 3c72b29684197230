"""The page of a survival study and its sentences, from records that were made up."""

from pathlib import Path

import pytest

from phalanx.report.findings import Agreement, TimeShare, finding_text
from phalanx.report.folder import read_folder
from phalanx.report.page import write_report
from phalanx.report.statistics import Interval
from phalanx.report.survival.charts import MOST_POINTS, curve_rows
from phalanx.report.survival.findings import (
    costs,
    effective_time,
    headline,
    same_bits,
    same_losses,
)
from phalanx.report.survival.page import content_of
from phalanx.report.survival.study_data import SurvivalStudyData, read_study_data
from tests.report import browser
from tests.report.browser import run
from tests.report.survival.made_survival import DEATHS, survival_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return survival_study(tmp_path_factory.mktemp("survival") / "study")


@pytest.fixture(scope="module")
def made(folder: Path) -> SurvivalStudyData:
    return read_study_data(folder)


def test_the_page_is_made_of_the_records(folder: Path, tmp_path: Path) -> None:
    text = write_report(folder, tmp_path / "report.html").read_text()
    assert "The same bits through 3 faults; of the time 9" in text
    assert "4 of 4 runs completed" in text
    assert "<b>not</b>" not in text
    assert "&lt;b&gt;not&lt;/b&gt; here" in text
    for title in ("Ways to go on", "Faults", "Bits of every run"):
        assert f">{title}</h3>" in text


def test_a_run_that_ranks_have_left_is_not_damaged(folder: Path) -> None:
    assert {run.status for run in read_folder(folder).runs} == {"completed"}


def test_the_bits_are_held_to_the_undisturbed_run(made: SurvivalStudyData, tmp_path: Path) -> None:
    bits, losses = same_bits(made), same_losses(made)
    assert bits == Agreement(
        num=2,
        n=2,
        noun="runs with faults",
        holds="ended with the SHA-256 of the undisturbed run of its seed",
    )
    assert losses is not None and (losses.num, losses.exceptions) == (2, ())
    other = read_study_data(survival_study(tmp_path / "other", other_bits=True))
    bits = same_bits(other)
    assert bits is not None and (bits.num, bits.exceptions) == (1, ("in-place-s1",))
    assert headline(other).endswith("; not in-place-s1")
    (cell,) = other.disturbed_cells
    assert "no sample lost" not in str(costs(other, cell)[-1])


def test_what_faults_cost_is_told(made: SurvivalStudyData) -> None:
    (cell,) = made.disturbed_cells
    found = costs(made, cell)
    assert str(found[0]).startswith("noticed after 30.0 ms (30.0 ms to 30.0 ms)")
    assert found[-1] == "0 steps made again, 0 restarts, no sample lost"
    share = effective_time(cell)
    assert isinstance(share, TimeShare)
    lost_s = [sum(death.cost_s for death in deaths) for deaths in DEATHS.values()]
    assert share.estimate == pytest.approx(sum(3 / (3 + lost) for lost in lost_s) / 2)
    assert share.subject == "steps of 50.0 ms"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.98, 0.99, "reaches"), (0.96, 0.98, "unclear"), (0.9, 0.95, "is below")],
)
def test_a_share_is_judged_by_its_interval(low: float, high: float, verdict: str) -> None:
    interval = Interval(estimate=(low + high) / 2, low=low, high=high)
    share = TimeShare(subject="steps", estimate=0.9, interval=interval, floor=0.97)
    assert share.verdict == verdict
    assert verdict in finding_text(share)
    alone = TimeShare(subject="steps", estimate=1.0, interval=None, floor=0.97)
    assert alone.verdict == "unclear"


def test_every_fault_is_on_its_curve(made: SurvivalStudyData) -> None:
    rows = curve_rows(made.of_seed(0))
    faults = [row for row in rows if row["kind"] == "fault"]
    assert [row["words"] for row in faults] == ["SIGKILL of rank 2", "SIGKILL of rank 0"]
    steps = [row for row in rows if row["kind"] == "step"]
    assert len(steps) <= 2 * (MOST_POINTS + 1)
    quiet = {r["updates"]: r["loss"] for r in steps if r["run"] == "undisturbed-s0"}
    disturbed = {r["updates"]: r["loss"] for r in steps if r["run"] == "in-place-s0"}
    assert quiet == disturbed


def test_a_study_that_has_just_begun_has_a_page(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes((folder / "study.json").read_bytes())
    content = content_of(read_study_data(tmp_path))
    assert content.headline.startswith("No run with faults has come to its end")
    assert content.key_figures == [] and content.leading is None


@pytest.mark.page
@pytest.mark.skipif(
    not browser.is_installed(), reason="needs Chromium and its chromedriver in /usr/bin"
)
def test_everything_is_drawn_and_fits(folder: Path, tmp_path: Path) -> None:
    page = write_report(folder, tmp_path / "report.html")
    with browser.browser(tmp_path / "profile", tmp_path / "down") as chrome:
        for width in (1280, 390):
            browser.show(chrome, page, width=width, scheme="light")
            assert [e for e in chrome.get_log("browser") if e["level"] != "INFO"] == []
            assert run(chrome, "document.documentElement.scrollWidth") == width
            charts = "[...document.querySelectorAll('[data-chart]')]"
            assert run(chrome, f"{charts}.every(c => c.querySelector('svg'))")
            # Loss by time and updates; effective time; steps of two seeds; loss of the second seed.
            assert run(chrome, f"{charts}.length") == 2 + 1 + 2 + 1
            browser.take_screenshot(chrome, tmp_path / f"{width}.png")
