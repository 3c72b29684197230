"""The page in a real browser, opened from disk: its charts against the records."""

import csv
import io
import statistics
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from phalanx.records.events import EpochEvent, EvaluationEvent, StepEvent
from phalanx.records.files import rank_file, read_events, read_run, read_study
from phalanx.report.page import write_report
from tests.report import browser
from tests.report.browser import drawn, run, show

pytestmark = browser.NEEDED
WIDTHS = {"desktop": 1280, "phone": 390}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def page(full: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(full, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def shown(chrome: Chrome, page: Path) -> Chrome:
    show(chrome, page, width=WIDTHS["desktop"], scheme="light")
    return chrome


def marks(chrome: Chrome, figure: str) -> list[str]:
    """What the marks of a chart say of themselves to a screen reader: the values as drawn."""
    selector = f"#{figure} [aria-roledescription='point']"
    find = f'[...document.querySelectorAll("{selector}")].map(m => m.ariaLabel)'
    labels: list[str] = run(chrome, find)
    return labels


def epoch_times(folder: Path, name: str) -> list[float]:
    """Times of the slowest rank without the first epoch, straight from the events."""
    ranks = read_run(folder / name).setting.ranks
    times = [
        [
            e.train_s
            for e in read_events(rank_file(folder / name, rank))
            if isinstance(e, EpochEvent)
        ]
        for rank in range(ranks)
    ]
    return [max(epoch) for epoch in zip(*times, strict=True)][1:]


def cnn_run(strategy: str, ranks: int, threads: int) -> str:
    width = f"t{threads}" if strategy == "sequential" else f"r{ranks}"
    return f"cnn-{strategy}-{width}-b128-s0"


def test_speed_up_is_that_of_the_records(shown: Chrome, full: Path) -> None:
    alone_s = statistics.median(epoch_times(full, cnn_run("sequential", 1, 1)))
    rows = drawn(shown, "speed-up-2")
    assert len(rows) == 8
    for row in rows:
        strategy, workers = str(row["strategy"]), int(str(row["workers"]))
        name = cnn_run(strategy, workers, workers if strategy == "sequential" else 1)
        expected = alone_s / statistics.median(epoch_times(full, name))
        assert row["speed_up"] == pytest.approx(expected, rel=1e-12)
        assert row["epoch_s"] == pytest.approx(alone_s / expected, rel=1e-12)
    assert len(marks(shown, "speed-up-2")) == len(rows)


def test_median_over_all_seeds(shown: Chrome, full: Path) -> None:
    rows = drawn(shown, "epoch-time-1")
    row = next(row for row in rows if row["configuration"] == "mpi, 2 ranks")
    times = [epoch_times(full, f"mlp-mpi-r2-b128-s{seed}") for seed in range(3)]
    assert row["epoch_s"] == pytest.approx(
        statistics.median(t for seed in times for t in seed), rel=1e-12
    )
    assert row["seeds"] == 3


def test_validation_curves_are_those_of_the_records(shown: Chrome, full: Path) -> None:
    name = "rnn-mpi-r4-b128-s0"
    events = [list(read_events(rank_file(full / name, rank))) for rank in range(4)]
    shown_rows = [r for r in drawn(shown, "loss-3") if r["configuration"] == "mpi, 4 ranks"]
    assert [row["epoch"] for row in shown_rows] == [1, 2, 3, 4, 5]
    trained_s = 0.0
    for number, row in enumerate(shown_rows):
        ends = [e for rank in events for e in rank if isinstance(e, EvaluationEvent)]
        parts = [e for e in ends if e.epoch == number]
        samples = sum(e.samples for e in parts)
        assert samples == 10_000
        expected = sum(e.loss_sum for e in parts) / samples
        assert row["validation_loss"] == pytest.approx(expected, rel=1e-12)
        correct = sum(e.correct for e in parts)
        assert row["validation_accuracy"] == pytest.approx(correct / samples, rel=1e-12)
        trains = [
            e for rank in events for e in rank if isinstance(e, EpochEvent) and e.epoch == number
        ]
        trained_s += max(e.train_s for e in trains)
        assert row["trained_s"] == pytest.approx(trained_s, rel=1e-12)


def test_parts_of_a_step_are_those_of_the_records(shown: Chrome, full: Path) -> None:
    files = [rank_file(full / "cnn-gloo-r4-b128-s0", rank) for rank in range(4)]
    steps = [e for f in files for e in read_events(f) if isinstance(e, StepEvent) and e.epoch > 0]
    rows = [r for r in drawn(shown, "step-2") if r["configuration"] == "gloo, 4 ranks"]
    assert [row["part"] for row in rows] == [
        "data",
        "forward",
        "backward",
        "communication",
        "optimizer",
    ]
    for row in rows:
        mean_s = statistics.fmean(getattr(step, f"{row['part']}_s") for step in steps)
        assert row["part_ms"] == pytest.approx(mean_s * 1e3, rel=1e-9)


def test_every_rank_is_drawn_for_the_chosen_run(shown: Chrome, full: Path) -> None:
    assert len(marks(shown, "rank-loss-1")) == 4 * 5
    view = "phalanx.views['rank-loss-1']"
    run(shown, f"{view}.signal('run_shown', 'mlp-gloo-r2-b128-s0').runAsync().then(() => 0)")
    assert len(marks(shown, "rank-loss-1")) == 2 * 5


def test_no_errors_and_no_network(shown: Chrome, page: Path) -> None:
    assert [entry for entry in shown.get_log("browser") if entry["level"] != "INFO"] == []
    addresses = {address.split("?")[0] for address in browser.requested(shown)}
    outside = {a for a in addresses if not a.startswith(("data:", "blob:", "file:"))}
    assert page.as_uri() in addresses
    assert outside == set()


def test_the_page_is_small_enough_to_send(page: Path) -> None:
    assert page.stat().st_size < 1_500_000


def test_the_policy_of_the_page_refuses_scripts_that_are_not_ours(shown: Chrome) -> None:
    added = "const s = document.createElement('script'); s.textContent = 'window.foreign = 1';"
    run(shown, f"(() => {{ {added} document.body.append(s); }})()")
    assert run(shown, "window.foreign === undefined")
    shown.get_log("browser")  # the refusal is reported there; it is not an error of the page


def test_colours_follow_the_system_and_the_button(chrome: Chrome, page: Path) -> None:
    line = "getComputedStyle(document.querySelector('#speed-up-1 [stroke*=\"--mpi\"]')).stroke"
    surface = "getComputedStyle(document.querySelector('.panel')).backgroundColor"
    show(chrome, page, width=1280, scheme="dark")
    dark = run(chrome, line), run(chrome, surface)
    assert run(chrome, "document.getElementById('theme').textContent") == "Light"
    run(chrome, "document.getElementById('theme').click()")
    light = run(chrome, line), run(chrome, surface)
    assert dark[0] != light[0]
    assert (dark[1], light[1]) == ("rgb(27, 30, 36)", "rgb(255, 255, 255)")
    show(chrome, page, width=1280, scheme="dark")
    assert run(chrome, surface) == light[1], "the choice is kept"
    run(chrome, "localStorage.clear()")


def test_on_paper_it_is_light_and_without_controls(chrome: Chrome, page: Path) -> None:
    show(chrome, page, width=720, scheme="dark")
    browser.emulate(chrome, scheme="dark", media="print")
    surface = "getComputedStyle(document.querySelector('.panel')).backgroundColor"
    assert run(chrome, surface) == "rgb(255, 255, 255)"
    seen = "[...document.querySelectorAll('button')].filter(b => b.offsetParent).length"
    assert run(chrome, seen) == 0
    uncut = "[...document.querySelectorAll('.panel')].every(p => p.scrollWidth <= p.clientWidth)"
    assert run(chrome, uncut)
    assert run(chrome, "getComputedStyle(document.querySelector('.panel')).breakInside") == "avoid"
    browser.emulate(chrome, scheme="light")


def test_charts_are_saved_in_light_colours_on_white(shown: Chrome, downloads: Path) -> None:
    for kind in ("svg", "png", "csv"):
        run(shown, f"document.querySelector('#speed-up-1 [data-save={kind}]').click()")
    svg = browser.downloaded(downloads, "speed-up-1.svg").decode()
    assert "var(" not in svg
    assert "#0b5cb8" in svg
    assert svg.startswith("<svg")
    png = browser.downloaded(downloads, "speed-up-1.png")
    assert png.startswith(PNG_SIGNATURE)
    assert int.from_bytes(png[16:20]) > 500, "twice the size on the screen"
    table = browser.downloaded(downloads, "speed-up-1.csv").decode()
    rows = list(csv.DictReader(io.StringIO(table)))
    live = drawn(shown, "speed-up-1")
    assert [float(row["speed_up"]) for row in rows] == [row["speed_up"] for row in live]


def test_a_click_on_the_legend_picks_out_a_strategy(shown: Chrome) -> None:
    faded = "[...document.querySelectorAll('#speed-up-1 .mark-symbol.role-mark path')]"
    count = f"{faded}.filter(p => p.getAttribute('opacity') === '0.12').length"
    assert run(shown, count) == 0
    view = "phalanx.views['speed-up-1']"
    pick = f"{view}.signal('strategy_picked_strategy_legend', 'mpi').runAsync().then(() => 0)"
    run(shown, pick)
    assert run(shown, count) == 5


@pytest.mark.parametrize("study", ["full", "troubled", "alone"])
def test_a_phone_shows_it_without_scrolling_sideways(
    chrome: Chrome, study: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    page = write_report(request.getfixturevalue(study), tmp_path / "report.html")
    show(chrome, page, width=WIDTHS["phone"], scheme="light")
    assert run(chrome, "document.documentElement.scrollWidth") == WIDTHS["phone"]
    inside = "[...document.querySelectorAll('.chart')].every(c => c.scrollWidth <= c.clientWidth)"
    assert run(chrome, inside)
    assert [entry for entry in chrome.get_log("browser") if entry["level"] != "INFO"] == []


def test_charts_follow_the_width_of_the_window(shown: Chrome) -> None:
    width = "document.querySelector('#speed-up-1 svg').clientWidth"
    wide = run(shown, width)
    size = {"width": 800, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    run(shown, "new Promise(done => setTimeout(done, 300))")
    assert run(shown, width) != wide
    assert run(shown, "document.documentElement.scrollWidth") == 800


def test_text_from_records_stays_text(chrome: Chrome, troubled: Path, tmp_path: Path) -> None:
    page = write_report(troubled, tmp_path / "report.html")
    show(chrome, page, width=1280, scheme="light")
    assert run(chrome, "window.broken === undefined")
    assert "</script><script>window.broken" in run(chrome, "document.body.innerText")
    assert "<b>lost</b>" not in page.read_text()
    status = "[...document.querySelectorAll('td')].map(c => c.textContent)"
    for words in ("✗ failed", "— interrupted", "· not run"):
        assert words in run(chrome, status)


def test_every_chart_has_words_and_every_table_a_name(shown: Chrome) -> None:
    charts = "[...document.querySelectorAll('[data-chart]')]"
    assert run(shown, f"{charts}.every(c => c.ariaLabel.length > 20 && c.querySelector('svg'))")
    assert run(shown, "document.querySelectorAll('h1').length") == 1
    tables = "[...document.querySelectorAll('.table-box')]"
    named = f"{tables}.every(t => document.getElementById(t.getAttribute('aria-labelledby')))"
    assert run(shown, named)


def test_every_planned_run_is_in_the_table(shown: Chrome, full: Path) -> None:
    names = run(shown, "[...document.querySelectorAll('tbody th')].map(c => c.textContent)")
    assert set(read_study(full).runs) <= set(names)


@pytest.mark.parametrize(
    ("device", "scheme"), [("desktop", "light"), ("desktop", "dark"), ("phone", "light")]
)
def test_screenshots_to_look_at(
    chrome: Chrome, page: Path, tmp_path: Path, device: str, scheme: str
) -> None:
    show(chrome, page, width=WIDTHS[device], scheme=scheme)
    browser.take_screenshot(chrome, tmp_path / f"{device}-{scheme}.png")
    assert (tmp_path / f"{device}-{scheme}.png").read_bytes().startswith(PNG_SIGNATURE)
