"""The pages of loading, and what stands on the terminal."""

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.report.build import content_of
from phalanx.report.folder import newest_folder
from phalanx.report.page import write_report
from tests.report.io.made_io import make_io, make_io_study
from tests.report.made_view import read


def test_the_page_of_a_measurement(tmp_path: Path) -> None:
    folder = make_io(tmp_path / "io", readers=(1, 2), depths=(1, 4), ranks=(1, 2))
    text = write_report(folder).read_text()
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert "/dev/&lt;sda&gt;" in text
    assert "<b>bold" not in text
    assert ">×torch</th>" in text
    content, _ = read(folder)
    names = {figure.name for figure in content.figures}
    charts = ("utilisation", "throughput", "first", "readers", "depth", "ranks")
    assert names == {f"{chart}-{cache}" for chart in charts for cache in (1, 2)}
    assert all(figure.rows for figure in content.figures)


def test_the_page_of_a_study(tmp_path: Path) -> None:
    folder = make_io_study(tmp_path / "study", missing=True)
    write_report(folder)
    content, _ = read(folder)
    assert content.kind == "io"
    assert [figure.value for figure in content.key_figures] == ["8.16 ms", "40.8 ms"]
    names = {figure.name for figure in content.figures}
    charts = ("busy", "throughput", "readers", "depth")
    assert names == {f"{chart}-{panel}" for chart in charts for panel in (1, 2)}


def test_the_newest_folder_may_be_one_of_loading(tmp_path: Path) -> None:
    folder = make_io(tmp_path / "bench" / "io")
    assert newest_folder(tmp_path) == folder
    study = make_io_study(tmp_path / "study")
    os.utime(folder / "io.json", (1000, 1000))
    assert newest_folder(tmp_path) == study


@pytest.mark.parametrize(("columns", "has_range"), [(80, False), (140, True)])
def test_the_table_on_the_terminal_fits(tmp_path: Path, columns: int, has_range: bool) -> None:
    console = Console(width=columns, record=True, no_color=True)
    content_of(make_io(tmp_path / "io")).print_summary(console)
    lines = console.export_text().splitlines()
    head = next(line for line in lines if "samples/s" in line)
    assert ("range" in head) == has_range
    assert "…" not in "".join(lines[:20])
    row = next(line.split() for line in lines if line.startswith("npy") and "phalanx" in line)
    for cell in ("12,255", "0.80", "5.00"):
        assert cell in row


def test_results_for_other_programs(tmp_path: Path) -> None:
    found = json.loads(json.dumps(content_of(make_io(tmp_path / "io")).as_json()))
    key = ("npy", "DataLoader")
    row = next(r for r in found["rows"] if (r["format_option"], r["loader"]) == key)
    assert row["samples_per_s"] == pytest.approx(100 / 0.0408)
    assert (len(row["total_s"]), row["floor"]) == (3, 0.9)
    assert ["", "Not measured: HDF5; h5py is not installed."] in found["conditions"]
