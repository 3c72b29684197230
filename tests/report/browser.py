"""A headless Chromium for the tests of the page; it never fetches a driver or a browser."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM = Path("/usr/bin/chromium")
DRIVER = Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
DRAWN_WITHIN_S = 60.0


def is_installed() -> bool:
    return CHROMIUM.exists() and DRIVER.exists()


MISSING = "needs Chromium and its chromedriver in /usr/bin"
NEEDED = [pytest.mark.page, pytest.mark.skipif(not is_installed(), reason=MISSING)]
"""Marks of tests that open a page."""
CHARTS = "[...document.querySelectorAll('[data-chart]')]"


@contextmanager
def browser(profile: Path, downloads: Path) -> Iterator[Chrome]:
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options=options, service=Service(str(DRIVER)))
    try:
        behaviour = {"behavior": "allow", "downloadPath": str(downloads)}
        chrome.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
        yield chrome
    finally:
        chrome.quit()


def show(chrome: Chrome, page: Path, *, width: int, scheme: str, media: str = "") -> None:
    """Open `page` and wait until every chart is drawn."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    emulate(chrome, scheme=scheme, media=media)
    open_page(chrome, page.as_uri())
    wait_for(chrome, "document.documentElement.dataset.drawn == 'all'")


def open_page(chrome: Chrome, address: str) -> None:
    """Open a page and wait until its document is whole.

    Chromium may say that it has loaded a page while the document at hand has no root element yet.
    """
    chrome.get(address)
    wait_for(chrome, "document.readyState == 'complete' && document.body !== null")


def wait_for(chrome: Chrome, condition: str) -> None:
    """Wait until a JavaScript expression is true."""
    deadline = time.monotonic() + DRAWN_WITHIN_S
    while not run(chrome, condition):
        assert time.monotonic() < deadline, f"not {condition}: {chrome.get_log('browser')}"
        time.sleep(0.05)


def show_whole(chrome: Chrome, page: Path, *, width: int, scheme: str) -> int:
    """Open `page`, check that everything is drawn and fits; return the number of its charts."""
    show(chrome, page, width=width, scheme=scheme)
    assert [entry for entry in chrome.get_log("browser") if entry["level"] != "INFO"] == []
    assert run(chrome, "document.documentElement.scrollWidth") == width
    assert run(chrome, f"{CHARTS}.every(c => c.querySelector('svg'))")
    assert run(chrome, f"{CHARTS}.every(c => c.scrollWidth <= c.clientWidth)")
    assert run(chrome, "window.broken === undefined")
    return int(run(chrome, f"{CHARTS}.length"))


def drawn(chrome: Chrome, figure: str) -> list[dict[str, Any]]:
    """Return the rows that a live chart holds."""
    text = run(chrome, f"JSON.stringify(phalanx.views['{figure}'].data('rows'))")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def num_marks(chrome: Chrome, figure: str, role: str) -> int:
    """Return the number of bars or points that a chart tells a screen reader of."""
    selector = f"#{figure} [aria-roledescription='{role}']"
    return int(run(chrome, f'document.querySelectorAll("{selector}").length'))


def emulate(chrome: Chrome, *, scheme: str, media: str = "") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def run(chrome: Chrome, expression: str) -> Any:
    """The value of a JavaScript expression; a promise is awaited."""
    answer = chrome.execute_cdp_cmd(
        "Runtime.evaluate",
        {"expression": f"({expression})", "awaitPromise": True, "returnByValue": True},
    )
    assert "exceptionDetails" not in answer, answer["exceptionDetails"]
    return answer["result"].get("value")


def requested(chrome: Chrome) -> list[str]:
    """Addresses that pages opened from disk have asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in chrome.get_log("performance")]
    requests = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    ours = [request for request in requests if request["documentURL"].startswith("file:")]
    return [str(request["request"]["url"]) for request in ours]


def take_screenshot(chrome: Chrome, path: Path) -> None:
    """The whole page, however long."""
    clip = {
        "x": 0,
        "y": 0,
        "width": run(chrome, "document.documentElement.clientWidth"),
        "height": run(chrome, "document.documentElement.scrollHeight"),
        "scale": 1,
    }
    options = {"captureBeyondViewport": True, "clip": clip}
    shot = chrome.execute_cdp_cmd("Page.captureScreenshot", options)
    path.write_bytes(base64.b64decode(shot["data"]))


def downloaded(folder: Path, name: str) -> bytes:
    """What was saved under `name`, once it is whole."""
    deadline = time.monotonic() + 20
    while not (folder / name).exists():
        assert time.monotonic() < deadline, f"{name} was not saved: {list(folder.iterdir())}"
        time.sleep(0.05)
    return (folder / name).read_bytes()
