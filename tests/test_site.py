"""The site of docs/ builds without a warning, from this repository alone, and fits any screen.

`python -m tests.test_site` lists the external links of all pages.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlencode

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.ui import WebDriverWait

from tests.conftest import ONE_THREAD
from tests.report.browser import NEEDED, browser, emulate, open_page, take_screenshot

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "packaging").rglob("*.md")),
]
CODE = re.compile(r"^ *```.*?^ *```|(?<!`)`[^`]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
BARE = re.compile(r"(?<![(\w`\"'])https?://[^\s)>`,]+")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
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
    if page.stem == "index":
        assert audience == "```{include} ../README.md"
        assert "for users of" in (ROOT / "README.md").read_text().partition("```")[0]
    else:
        assert audience.startswith("*For ") and audience.endswith("*")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    titles = HEADING.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S))
    plain = (re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles)
    return {re.sub(r"\s", "-", title) for title in plain}


def links_of(page: Path) -> list[str]:
    text = CODE.sub("", page.read_text())
    return [*LINK.findall(text), *BARE.findall(text)]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for link in links_of(page):
        if re.match(r"\w+:", link) or link.startswith("URL-of"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_links_of_the_readme_serve_the_site_too() -> None:
    """Its beginning is a part of the home page, where only links into docs/ are rewritten."""
    included, _, _ = (ROOT / "README.md").read_text().partition("## Where to read on")
    links = [link for link in LINK.findall(included) if not re.match(r"\w+:", link)]
    assert len(links) > 5
    assert not [link for link in links if not link.startswith("docs/")]


def external_links() -> dict[str, set[str]]:
    """Return the pages of each external link."""
    found = defaultdict(set)
    for page in TEXTS:
        for link in links_of(page):
            if re.match(r"https?:", link):
                found[link.rstrip(".")].add(str(page.relative_to(ROOT)))
    return dict(found)


def test_external_links_are_secure_and_written_in_one_way() -> None:
    links = external_links()
    assert len(links) > 10
    assert not [link for link in links if not link.startswith("https://")]
    forms = defaultdict(set)
    for link in links:
        forms[re.sub(r"^https://(www\.)?|/$", "", link).lower()].add(link)
    assert not [written for written in forms.values() if len(written) > 1]


@pytest.fixture
def chrome(tmp_path: Path) -> Iterator[Chrome]:
    with browser(tmp_path / "profile", tmp_path) as started:
        yield started


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Address of the site on a server: a browser reads no search index of a file."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class TestInABrowser:
    pytestmark = NEEDED

    @pytest.mark.parametrize("width", [390, 1280])
    def test_pages_fit_the_screen(
        self, site: Path, chrome: Chrome, width: int, tmp_path: Path
    ) -> None:
        """The home page, and the longest ones, by light and by dark; screenshots to look at."""
        longest = sorted(site.glob("*.html"), key=lambda path: path.stat().st_size)[-8:]
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800}
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for scheme, is_white in (("light", True), ("dark", False)):
            emulate(chrome, scheme=scheme)
            for path in [site / "index.html", *longest]:
                open_page(chrome, path.as_uri())
                # A page is shown before its style, and has no background until then.
                found, background = WebDriverWait(chrome, 20).until(
                    lambda chrome: chrome.execute_script(
                        "const color = getComputedStyle(document.body).backgroundColor;"
                        "return color == 'rgba(0, 0, 0, 0)' ? null"
                        " : [document.documentElement.scrollWidth, color]"
                    )
                )
                assert (path.name, found) == (path.name, width)
                assert (path.name, background == "rgb(255, 255, 255)") == (path.name, is_white), (
                    background
                )
            open_page(chrome, (site / "index.html").as_uri())
            take_screenshot(chrome, tmp_path / f"{scheme}.png")

    @pytest.mark.parametrize("words", ["gradient accumulation", "Slurm", "hang"])
    def test_a_search_finds(self, address: str, chrome: Chrome, words: str) -> None:
        open_page(chrome, f"{address}/search.html?{urlencode({'q': words})}")
        found = WebDriverWait(chrome, 20).until(
            lambda chrome: chrome.execute_script(
                "return [...document.querySelectorAll('#search-results li a')].map(a => a.href)"
            )
        )
        assert any(link.startswith(address) for link in found)


if __name__ == "__main__":
    for link, pages in sorted(external_links().items()):
        print(link, *sorted(pages))
