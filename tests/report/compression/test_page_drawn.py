"""The page of a compression study in a real browser."""

from pathlib import Path

import pytest

from phalanx.report.page import write_report
from tests.report import browser
from tests.report.browser import run
from tests.report.compression.made_compression import make

pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(
        not browser.is_installed(), reason="needs Chromium and its chromedriver in /usr/bin"
    ),
]


def test_everything_is_drawn_and_fits(tmp_path: Path) -> None:
    page = write_report(make(tmp_path / "study"), tmp_path / "report.html")
    with browser.browser(tmp_path / "profile", tmp_path / "down") as chrome:
        for width in (1280, 390):
            browser.show(chrome, page, width=width, scheme="light")
            assert [e for e in chrome.get_log("browser") if e["level"] != "INFO"] == []
            assert run(chrome, "document.documentElement.scrollWidth") == width
            charts = "[...document.querySelectorAll('[data-chart]')]"
            assert run(chrome, f"{charts}.every(c => c.querySelector('svg'))")
            # Bytes, time and accuracy; steps by bandwidth; a step in each of four places.
            assert run(chrome, f"{charts}.length") == 3 + 1 + 4
            browser.take_screenshot(chrome, tmp_path / f"{width}.png")
