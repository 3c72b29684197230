"""The page of measured collectives in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from phalanx.report.page import write_report
from tests.report import browser
from tests.report.browser import run
from tests.report.collectives.made_bench import MEDIANS, make_vendors

pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(
        not browser.is_installed(), reason="needs Chromium and its chromedriver in /usr/bin"
    ),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_vendors(tmp_path_factory.mktemp("vendors"))
    return write_report(folder, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    profile, downloads = tmp_path_factory.mktemp("profile"), tmp_path_factory.mktemp("down")
    with browser.browser(profile, downloads) as chrome:
        yield chrome


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_everything_is_drawn_and_fits(chrome: Chrome, page: Path, width: int, scheme: str) -> None:
    browser.show(chrome, page, width=width, scheme=scheme)
    assert [entry for entry in chrome.get_log("browser") if entry["level"] != "INFO"] == []
    assert run(chrome, "document.documentElement.scrollWidth") == width
    charts = "[...document.querySelectorAll('[data-chart]')]"
    assert run(chrome, f"{charts}.every(c => c.querySelector('svg'))")
    # Time of 3 collectives, 3 charts over sizes of 2 of them, the memory once: on 2 libraries.
    assert run(chrome, f"{charts}.length") == 2 * (3 + 3 * 2 + 1)


def test_marks_carry_the_values_of_the_records(chrome: Chrome, page: Path) -> None:
    browser.show(chrome, page, width=1280, scheme="light")
    rows = json.loads(run(chrome, "JSON.stringify(phalanx.views['time-1'].data('rows'))"))
    found = {row["bytes"]: row["median_us"] for row in rows if row["path"] == "phalanx window"}
    assert list(found.values()) == pytest.approx([s * 1e6 for s in MEDIANS["window"]])
    points = "document.querySelectorAll(\"#time-1 [aria-roledescription='point']\").length"
    assert run(chrome, points) == len(rows)
