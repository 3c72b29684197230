"""The page of a compression study, and what the terminal shows of it."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.report.build import content_of
from phalanx.report.page import write_report
from phalanx.report.pages.compression import (
    MEMORY,
    STEPS,
    accuracy_and_price,
    fit_cells,
    fit_of,
    headline,
    held_in_memory,
)
from phalanx.report.values import View
from tests.report.compression.made_compression import BYTES, make, step_s
from tests.report.made_view import check_claims, read, rows_of, table_of, told

LINK = "1Gbit/s,1ms"


def view_of(folder: Path) -> View:
    _, (view,) = read(folder)
    return view


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("compression") / "made")


@pytest.fixture(scope="module")
def made(study: Path) -> View:
    return view_of(study)


def test_cells_have_the_median_step_of_the_slower_rank(made: View) -> None:
    assert [panel.label for panel in made.panels] == [MEMORY, "10Gbit/s", LINK, "100Mbit/s"]
    cells = {(row["compressor"], row["panel"]): row for row in made.frame("cells")}
    cell = cells["int8", LINK]
    assert cell["step_s"] == pytest.approx(step_s("int8", LINK))
    assert cell["sent_bytes"] == BYTES["int8"]
    whole, half = step_s("none", LINK), step_s("bf16", LINK)
    assert cells["bf16", LINK]["gain"] == pytest.approx(whole / half)


def test_the_fit_finds_what_the_steps_were_made_of(made: View) -> None:
    fit = fit_of(made)
    assert fit is not None
    assert fit.slope == pytest.approx(1)
    assert fit.worst < 1e-9
    assert fit.bases_s == pytest.approx(
        {"float32": 0.010, "bf16": 0.012, "int8": 0.016, "top-k": 0.011}
    )
    # Bytes saved ÷ coding.
    assert fit.break_even_bandwidth("bf16") == pytest.approx(8e6 / 2e-3)


def test_who_costs_nothing_pays_always_and_who_saves_nothing_never() -> None:
    points = [
        {"compressor": name, "sent_bytes": sent, "bandwidth": b, "step_s": base + sent / b}
        for name, sent, base in (("float32", 8.0, 5.0), ("free", 4.0, 4.0), ("larger", 9.0, 6.0))
        for b in (1.0, 10.0)
    ]
    fit = fit_cells(points)
    assert fit is not None
    assert [fit.pays(name) for name in ("free", "larger", "unknown")] == (["always", "never", None])
    assert fit_cells(points[:1]) is None


def test_accuracy_is_held_within_the_spread_of_the_seeds(made: View) -> None:
    verdicts = {name: found.verdict for name, found in held_in_memory(made).items()}
    assert verdicts == {"bf16": "holds", "int8": "holds", "top-k": "is below"}


def test_claims_of_places_and_compressors(made: View) -> None:
    steps = [found for found in told(made, STEPS) if found.label == LINK]
    assert [found.text.split(":")[0] for found in steps] == ["top-k", "int8", "bf16"]
    estimates = [found.interval.estimate for found in steps if found.interval]
    assert estimates == pytest.approx([10.18, 2.83, 1.82], abs=0.01)
    assert {f.verdict for f in told(made, STEPS) if f.label == MEMORY} == {"lower"}
    bf16, int8, topk = (found.text for found in accuracy_and_price(made))
    assert bf16 == (
        "bf16: the accuracy of float32 with every seed; pays below 32 Gbit/s, it costs 2.00 ms per "
        "step"
    )
    assert int8.startswith("int8: accuracy of float32 held, −0.05 points (")
    assert topk.startswith("top-k: accuracy below float32, −3.00 points (")


def test_no_accuracy_is_claimed_that_nobody_measured(tmp_path: Path) -> None:
    """All top-k trainings had failed: `10.2 times as fast and holds the accuracy`."""
    content, (view,) = read(make(tmp_path / "s", failed="memory-topk"))
    assert headline(view).startswith("int8: steps")
    assert content.conditions[0][1].startswith("Not completed: 3 of 24 runs: 3 failed")
    alone = view_of(make(tmp_path / "alone", failed="memory-"))
    assert headline(alone).endswith("accuracy not measured")


def test_of_one_seed_no_verdict_is_given(tmp_path: Path) -> None:
    view = view_of(make(tmp_path / "s", seeds=(0,)))
    found = held_in_memory(view)["bf16"]
    assert (found.verdict, found.interval) == ("unclear", None)
    assert headline(view).endswith("effect on accuracy unclear")


def test_lines_and_crossings_are_drawn(made: View) -> None:
    rows = made.frame("bandwidths")
    assert [row["kind"] for row in rows].count("measured") == 12
    crossings = {row["compressor"]: row["link"] for row in rows if row["kind"] == "begins to pay"}
    assert crossings == {"bf16": "32 Gbit/s", "int8": "15.9 Gbit/s"}


def test_a_row_of_the_table(made: View) -> None:
    table = table_of(made, "Compressors")
    assert table is not None
    row = next(row for row in rows_of(table) if row["sent as"] == "int8")
    assert row["fewer"] == "3.9"
    assert row["100Mbit/s (ms)"] == "344 (3.75)"
    assert row["begins to pay"] == "below 15.9 Gbit/s"


def test_the_page_and_the_terminal_show_it(study: Path, tmp_path: Path) -> None:
    content, _ = read(study)
    check_claims(content)
    assert content.headline == "int8: steps 2.83× faster on 1Gbit/s,1ms, accuracy held"
    assert [key.value for key in content.key_figures] == ["1.24×", "2.83×", "3.75×"]
    text = write_report(study, tmp_path / "report.html").read_text()
    for title in ("Compressors", "Fit", "Runs"):
        assert f">{title}</h3>" in text
    console = Console(record=True, width=80, soft_wrap=True)
    content_of(study).print_summary(console)
    text = console.export_text()
    assert "pays below 32 Gbit/s" in text
    assert "344 (3.75)" in text  # whole also where 80 columns are all there is
    assert "no line" not in text


def test_a_fit_that_is_none_says_so(study: Path) -> None:
    """Steps of a busy machine were 39 % off the line, yet bandwidths had three digits."""
    view = view_of(study)
    for row in view.data.rows:
        if row["place"] == LINK:
            row["step_s"] *= 1.8  # type: ignore[index]
    assert re.search("no line", " ".join(found.text for found in accuracy_and_price(view)))


@pytest.mark.parametrize("links", [True, False])
def test_runs_that_failed_and_links_that_were_not_asked_for(links: bool, tmp_path: Path) -> None:
    failed = "1Gbit-s-1ms-none-s0" if links else "memory-none-s0"
    folder = make(tmp_path / "study", links=links, failed=failed)
    text = write_report(folder).read_text()
    assert "<b>lost</b>" not in text
    assert "&lt;b&gt;lost&lt;/b&gt;" in text
