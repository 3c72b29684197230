"""The page of a parallelism study, and what the terminal shows of it."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.report.content import Table
from phalanx.report.folder import newest_folder
from phalanx.report.page import write_report
from phalanx.report.parallelism.page import content_of
from phalanx.report.parallelism.study_data import ParallelismStudyData
from phalanx.report.parallelism.summary import show
from tests.report.parallelism.made_parallelism import failed, make


def table(data: ParallelismStudyData, title: str) -> Table:
    return next(table for table in content_of(data).tables if table.title == title)


def rows_of(table: Table, scheme: str, ranks: int) -> list[dict[str, str]]:
    """By the names of the columns; of two with one name the later."""
    named = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [row for row in named if (row["scheme"], row["ranks"]) == (scheme, str(ranks))]


def test_the_page_is_made_of_the_records(study: Path, tmp_path: Path) -> None:
    page = write_report(study, tmp_path / "report.html")
    text = page.read_text()
    assert "The ring all-reduce on 2 ranks trains the MLP 1.25\N{MULTIPLICATION SIGN} (1.14" in text
    assert "<b>lost</b>" not in text
    assert "&lt;b&gt;lost&lt;/b&gt;" in text
    for title in ("Bytes of a rank and step", "Memory of a rank", "From scratch", "All-reduce"):
        assert f">{title}</h3>" in text
    assert page.stat().st_size < 1_500_000


def test_a_scheme_has_its_row(made: ParallelismStudyData) -> None:
    (row,) = rows_of(table(made, "Schemes"), "mpi ring", 2)
    assert (row["step (ms)"], row["epoch (s)"], row["speed-up"]) == ("1.60", "0.0320", "1.25")
    assert (row["sent"], row["="], row["kept"], row["of formula"]) == (
        ("977 KB", "=", "3.81 MB", "0.0 %")
    )
    assert (row["efficiency"], row["waiting"], row["accuracy"]) == ("62 %", "30 %", "90.00 %")


def test_what_is_exchanged_within_the_passes_is_not_called_no_waiting(
    made: ParallelismStudyData,
) -> None:
    (row,) = rows_of(table(made, "Schemes"), "zero 3", 4)
    assert row["waiting"] == "\N{EN DASH}"


def test_servers_and_workers_have_rows_of_their_own(made: ParallelismStudyData) -> None:
    rows = rows_of(table(made, "Bytes of a rank and step"), "server asynchronous", 4)
    assert [row["role"] for row in rows] == ["server", "3 workers"]


def test_all_charts_that_the_records_allow(made: ParallelismStudyData) -> None:
    content = content_of(made)
    assert [section.name for section in content.sections] == [
        *("scaling", "learning", "bytes", "staleness", "pipelines", "scratch", "algorithms"),
    ]
    names = [panel.figure.name for panel in content.panels]
    assert len(names) == len(set(names))
    assert {"overview-1", "speed-up-1-summed", "pipeline-2-pipeline-1f1b"} <= set(names)
    assert all(panel.figure.rows for panel in content.panels)


def test_a_study_without_a_completed_run_has_a_page(tmp_path: Path) -> None:
    folder = make(tmp_path / "s", [failed()])
    text = write_report(folder).read_text()
    assert "No run of this study was completed yet" in text
    assert "\N{BALLOT X} failed" in text


def test_the_newest_folder_is_the_study_and_not_its_algorithms(study: Path, tmp_path: Path) -> None:
    inside = study / "algorithms" / "ranks-4" / "bench.json"
    os.utime(inside, (2**31, 2**31))
    assert newest_folder(study.parent) == study


@pytest.mark.parametrize("columns", [80, 120])
def test_the_terminal_shows_every_scheme_in_its_width(
    made: ParallelismStudyData, columns: int
) -> None:
    console = Console(width=columns, color_system=None)
    with console.capture() as capture:
        show(made, console)
    lines = capture.get().splitlines()
    head = next(line for line in lines if "epoch s" in line)
    assert ("step ms" in head) == (columns >= 100)
    ring = next(line.split() for line in lines if line.startswith("mpi ring"))
    assert ring[-2:] == ["0.3366", "90.00"]
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines), "nothing is cut off"
    assert "failed" in capture.get()
