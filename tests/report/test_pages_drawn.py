"""The pages of all kinds of study in a real browser."""

from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from phalanx.report.page import write_report
from tests.report import browser
from tests.report.collectives.made_bench import MEDIANS, make_vendors
from tests.report.compression.made_compression import make
from tests.report.io.made_io import make_io, make_io_study
from tests.report.parallelism.made_parallelism import MICRO_BATCHES, parallelism_study

pytestmark = browser.NEEDED


@pytest.fixture(scope="module")
def collectives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_vendors(tmp_path_factory.mktemp("vendors")))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_of_collectives(chrome: Chrome, collectives: Path, width: int, scheme: str) -> None:
    # Time of 3 collectives, 3 charts over sizes of 2 of them, the memory once: on 2 libraries.
    found = browser.show_whole(chrome, collectives, width=width, scheme=scheme)
    assert found == 2 * (3 + 3 * 2 + 1)


def test_marks_carry_the_values_of_the_records(chrome: Chrome, collectives: Path) -> None:
    browser.show(chrome, collectives, width=1280, scheme="light")
    rows = browser.drawn(chrome, "time-1")
    found = {row["bytes"]: row["median_us"] for row in rows if row["path"] == "phalanx window"}
    assert list(found.values()) == pytest.approx([s * 1e6 for s in MEDIANS["window"]])
    assert browser.num_marks(chrome, "time-1", "point") == len(rows)


@pytest.mark.parametrize("width", [1280, 390])
def test_of_compression(chrome: Chrome, tmp_path: Path, width: int) -> None:
    page = write_report(make(tmp_path / "study"))
    # Bytes, time and accuracy; steps by bandwidth; a step in each of four places.
    assert browser.show_whole(chrome, page, width=width, scheme="light") == 3 + 1 + 4
    browser.take_screenshot(chrome, tmp_path / f"{width}.png")


def test_of_loading(chrome: Chrome, tmp_path: Path) -> None:
    folder = make_io(tmp_path / "io", readers=(1, 2), depths=(1, 4), ranks=(1, 2))
    page, study = write_report(folder), write_report(make_io_study(tmp_path / "study"))
    assert browser.show_whole(chrome, page, width=1280, scheme="dark") >= 8
    assert browser.show_whole(chrome, study, width=390, scheme="light") >= 8
    browser.show(chrome, page, width=1280, scheme="light")
    assert browser.num_marks(chrome, "utilisation-1", "bar") == 3, "the best way of every format"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_of_parallelism(chrome: Chrome, tmp_path: Path, width: int, scheme: str) -> None:
    page = write_report(parallelism_study(tmp_path / "study"))
    assert browser.show_whole(chrome, page, width=width, scheme=scheme) > 20
    # Every piece of the drawn pipeline is a bar, of its kind's length in time.
    rows = browser.drawn(chrome, "pipeline-2-pipeline-1f1b")
    assert len(rows) == 4 * 2 * MICRO_BATCHES
    assert browser.num_marks(chrome, "pipeline-2-pipeline-1f1b", "bar") == len(rows)
    assert {round(row["end_ms"] - row["begin_ms"], 6) for row in rows} == {1.0}
