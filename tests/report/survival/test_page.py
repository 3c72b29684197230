"""The page of a survival study and its claims, from records that were made up."""

from pathlib import Path

import pytest

from phalanx.report.folder import read_folder
from phalanx.report.page import write_report
from phalanx.report.pages.survival import (
    MOST_POINTS,
    costs,
    disturbed,
    effective_time,
    headline,
    same_bits,
)
from phalanx.report.values import View
from tests.report import browser
from tests.report.browser import run
from tests.report.made_view import check_claims, read
from tests.report.survival.made_survival import DEATHS, survival_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return survival_study(tmp_path_factory.mktemp("survival") / "study")


@pytest.fixture(scope="module")
def made(folder: Path) -> View:
    return view_of(folder)


def view_of(folder: Path) -> View:
    _, (view,) = read(folder)
    return view


def test_the_page_is_made_of_the_records(folder: Path, tmp_path: Path) -> None:
    content, _ = read(folder)
    check_claims(content)
    assert content.headline == "Same bits through 3 faults, 96.9 % of the time effective"
    assert [key.value for key in content.key_figures] == ["96.9 %", "30.0 ms", "100 ms", "2 of 2"]
    text = write_report(folder, tmp_path / "report.html").read_text()
    assert "4 of 4 runs completed" in text
    assert "<b>not</b>" not in text
    assert "&lt;b&gt;not&lt;/b&gt; here" in text
    for title in ("Ways to go on", "Faults", "Bits of every run"):
        assert f">{title}</h3>" in text


def test_a_run_that_ranks_have_left_is_not_damaged(folder: Path) -> None:
    assert {run.status for run in read_folder(folder).runs} == {"completed"}


def test_the_bits_are_held_to_the_undisturbed_run(made: View, tmp_path: Path) -> None:
    bits, losses = (told.text for told in same_bits(made))
    assert bits == (
        "2 of 2 runs with faults ended with the SHA-256 of the undisturbed run of its seed"
    )
    assert losses.startswith("2 of 2 runs with faults had the losses of the undisturbed run")
    other = view_of(survival_study(tmp_path / "other", other_bits=True))
    bits, _ = (told.text for told in same_bits(other))
    assert bits.startswith("1 of 2 runs") and bits.endswith("; not in-place-s1")
    assert headline(other) == "Different bits after faults in 1 of 2 runs"
    (cost,) = costs(other)
    assert "no sample lost" not in cost.text


def test_what_faults_cost_is_told(made: View) -> None:
    (cost,) = costs(made)
    assert cost.text.startswith("noticed after 30.0 ms (30.0 ms to 30.0 ms)")
    assert cost.text.endswith("0 steps made again, 0 restarts, no sample lost")
    (cell,) = disturbed(made)
    lost_s = [sum(death.cost_s for death in deaths) for deaths in DEATHS.values()]
    shares = [3 / (3 + lost) for lost in lost_s]
    assert cell.values("share") == pytest.approx(shares)
    (told,) = effective_time(made)
    assert told.verdict == "unclear"
    assert "steps of 50.0 ms, 3 faults, one every" in told.text


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ((0.985, 0.986, 0.984), "above 97.0 %"),
        ((0.96, 0.98, 0.97), "not significantly different from 97.0 %"),
        ((0.92, 0.93, 0.925), "below 97.0 %"),
        ((1.0,), "in one run: too few to compare it with 97.0 %"),
    ],
)
def test_a_share_is_judged_by_its_interval(
    shares: tuple[float, ...], words: str, tmp_path: Path
) -> None:
    view = view_of(survival_study(tmp_path / "s"))
    (cell,) = disturbed(view)
    cell.rows[0]["share"] = shares  # type: ignore[index]
    cell.rows[1]["share"] = None  # type: ignore[index]
    (told,) = effective_time(view)
    assert words in told.text


def test_every_fault_is_on_its_curve(made: View) -> None:
    rows = [row for row in made.frame("curves") if row["panel"] == "seed 0"]
    faults = [row for row in rows if row["kind"] == "fault"]
    assert [row["words"] for row in faults] == ["SIGKILL of rank 2", "SIGKILL of rank 0"]
    steps = [row for row in rows if row["kind"] == "step"]
    assert len(steps) <= 2 * (MOST_POINTS + 1)
    quiet = {r["updates"]: r["loss"] for r in steps if r["run"] == "undisturbed-s0"}
    disturbed_run = {r["updates"]: r["loss"] for r in steps if r["run"] == "in-place-s0"}
    assert quiet == disturbed_run


def test_a_study_that_has_just_begun_has_a_page(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes((folder / "study.json").read_bytes())
    content, _ = read(tmp_path)
    assert content.headline.startswith("No run with faults has ended")
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
            # Of two seeds: loss by time and by updates, steps; effective time.
            assert run(chrome, f"{charts}.length") == 2 * 3 + 1
