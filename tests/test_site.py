"""The site of docs/ builds without a warning, from this repository alone, and fits any screen.

`python -m tests.test_site` lists the external links of all pages.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import ONE_THREAD
from tests.report.browser import NEEDED, browser, emulate

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


if __name__ == "__main__":
    for link, pages in sorted(external_links().items()):
        print(link, *sorted(pages))
