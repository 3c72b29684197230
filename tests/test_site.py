"""The site of docs/ builds without a warning, from this repository alone, and fits any screen."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ONE_THREAD
from tests.report.browser import NEEDED, browser, emulate

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LOADED = re.compile(r"<(?:script|img|iframe)[^>]+src=\"([^\"]+)|<link[^>]+stylesheet[^>]*>")
NO_PROXY_ANSWERS = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
"""Whatever is fetched fails."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*words, "--doctree-dir", folder / "doctrees", ROOT / "docs", folder / "html"],
        env={**os.environ, **ONE_THREAD, **NO_PROXY_ANSWERS},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    built = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in PAGES} <= built
    for path in site.rglob("*.html"):
        loaded = [found.group(0) for found in LOADED.finditer(path.read_text())]
        assert loaded and not [each for each in loaded if "//" in each], path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_first_for_whom_it_is(page: Path) -> None:
    title, nothing, audience, *_ = page.read_text().splitlines()
    assert title.startswith("# ") and not nothing
    assert audience.startswith(("*For ", "**For ")) and audience.endswith("*")


class TestInABrowser:
    pytestmark = NEEDED

    def test_no_page_is_wider_than_a_phone(self, site: Path, tmp_path: Path) -> None:
        """The home page, and the longest ones, in the dark."""
        longest = sorted(site.glob("*.html"), key=lambda path: path.stat().st_size)[-8:]
        size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        with browser(tmp_path / "profile", tmp_path) as chrome:
            chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            emulate(chrome, scheme="dark")
            for path in [site / "index.html", *longest]:
                chrome.get(path.as_uri())
                width, background = chrome.execute_script(
                    "return [document.documentElement.scrollWidth,"
                    " getComputedStyle(document.body).backgroundColor]"
                )
                assert (path.name, width) == (path.name, 390)
                assert background != "rgb(255, 255, 255)"
