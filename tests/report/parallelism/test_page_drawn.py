"""The page of a parallelism study in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from phalanx.report.page import write_report
from tests.report import browser
from tests.report.browser import run
from tests.report.parallelism.made_parallelism import MICRO_BATCHES

pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(
        not browser.is_installed(), reason="needs Chromium and its chromedriver in /usr/bin"
    ),
]


@pytest.fixture(scope="module")
def page(study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(study, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    profile, downloads = tmp_path_factory.mktemp("profile"), tmp_path_factory.mktemp("down")
    with browser.browser(profile, downloads) as chrome:
        yield chrome


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_everything_is_drawn_and_fits(chrome: Chrome, page: Path, width: int, scheme: str) -> None:
    browser.show(chrome, page, width=width, scheme=scheme)
    assert [entry for entry in chrome.get_log("browser") if entry["level"] != "INFO"] == []
    assert run(chrome, "document.documentElement.scrollWidth") == width
    charts = "[...document.querySelectorAll('[data-chart]')]"
    assert run(chrome, f"{charts}.length") > 20
    assert run(chrome, f"{charts}.every(c => c.querySelector('svg'))")
    assert run(chrome, f"{charts}.every(c => c.scrollWidth <= c.clientWidth)")
    assert run(chrome, "window.broken === undefined")
    # Every piece of the drawn pipeline is a bar, of its kind's length in time.
    view = "phalanx.views['pipeline-2-pipeline-1f1b']"
    rows = json.loads(run(chrome, f"JSON.stringify({view}.data('rows'))"))
    assert len(rows) == 4 * 2 * MICRO_BATCHES
    bars = "#pipeline-2-pipeline-1f1b [aria-roledescription='bar']"
    assert run(chrome, f'document.querySelectorAll("{bars}").length') == len(rows)
    assert {round(row["end_ms"] - row["begin_ms"], 6) for row in rows} == {1.0}
