"""The page of measured collectives."""

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.report.build import content_of
from phalanx.report.folder import newest_folder
from phalanx.report.page import write_report
from tests.report.collectives.made_bench import EVERYTHING, MEDIANS, make_bench, make_vendors


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_vendors(tmp_path_factory.mktemp("vendors"))
    return write_report(folder, tmp_path_factory.mktemp("page") / "report.html")


def test_the_page_is_made_of_the_records(page: Path) -> None:
    text = page.read_text()
    assert "phalanx window 5.00\N{MULTIPLICATION SIGN} faster than MPICH" in text
    assert "MPICH 5.0.2" in text
    assert "no &lt;b&gt;GPU&lt;/b&gt;" in text
    assert "3 wrong elements" in text
    for column in ("algbw", "busbw", "wrong", "×floor"):
        assert f">{column}</th>" in text
    assert page.stat().st_size < 1_500_000


def test_the_newest_folder_may_be_a_bench(tmp_path: Path) -> None:
    folder = make_bench(tmp_path / "bench" / "b")
    os.utime(folder / "bench.json", (1000, 1000))
    assert newest_folder(tmp_path) == folder
    make_vendors(tmp_path / "bench" / "every-mpi")
    assert newest_folder(tmp_path) == tmp_path / "bench" / "every-mpi"


@pytest.mark.parametrize(("columns", "has_type"), [(80, False), (120, True)])
def test_the_table_on_the_terminal_fits(tmp_path: Path, columns: int, has_type: bool) -> None:
    console = Console(width=columns, record=True, no_color=True)
    content_of(make_bench(tmp_path / "b", collectives=EVERYTHING)).print_summary(console)
    lines = console.export_text().splitlines()
    head = next(line for line in lines if "algbw" in line)
    assert ("type" in head) == has_type
    rows = [line.split() for line in lines if line.strip().startswith("1 MB")]
    assert [row[-1] for row in rows[:4]] == ["1.10", "3.67", "5.51", "73.49"]
    assert [row[-2] for row in rows[:4]] == ["0"] * 4


def test_results_for_other_programs(tmp_path: Path) -> None:
    found = json.loads(json.dumps(content_of(make_bench(tmp_path / "b")).as_json()))
    row = next(r for r in found["rows"] if (r["path_option"], r["bytes"]) == ("window", 2**20))
    assert row["median_s"] == pytest.approx(MEDIANS["window"][2])
    assert (row["path"], row["wrong"]) == ("phalanx window", 0)
    assert [run["status"] for run in found["runs"]] == ["completed"]
    assert len(found["findings"][0]) == 2
