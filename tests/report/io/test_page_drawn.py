"""The pages of loading in a real browser."""

from pathlib import Path

import pytest

from phalanx.report.page import write_report
from tests.report import browser
from tests.report.browser import run
from tests.report.io.made_io import make_io, make_io_study

pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(
        not browser.is_installed(), reason="needs Chromium and its chromedriver in /usr/bin"
    ),
]


def test_everything_is_drawn_and_fits(tmp_path: Path) -> None:
    pages = [
        write_report(make_io(tmp_path / "io", readers=(1, 2), depths=(1, 4), ranks=(1, 2))),
        write_report(make_io_study(tmp_path / "study")),
    ]
    profile, downloads = tmp_path / "profile", tmp_path / "down"
    with browser.browser(profile, downloads) as chrome:
        for page, width, scheme in ((pages[0], 1280, "dark"), (pages[1], 390, "light")):
            browser.show(chrome, page, width=width, scheme=scheme)
            assert [e for e in chrome.get_log("browser") if e["level"] != "INFO"] == []
            assert run(chrome, "document.documentElement.scrollWidth") == width
            charts = "[...document.querySelectorAll('[data-chart]')]"
            assert run(chrome, f"{charts}.length") >= 8
            assert run(chrome, f"{charts}.every(c => c.querySelector('svg'))")
            assert run(chrome, f"{charts}.every(c => c.scrollWidth <= c.clientWidth)")
        # A bar for the best way of every format.
        browser.show(chrome, pages[0], width=1280, scheme="light")
        bars = "#utilisation-1 [aria-roledescription='bar']"
        assert run(chrome, f'document.querySelectorAll("{bars}").length') == 3
