"""The page of a parallelism study, and what the terminal shows of it."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from phalanx.report.build import content_of
from phalanx.report.folder import newest_folder
from phalanx.report.page import write_report
from phalanx.report.values import View
from tests.report.made_view import read, rows_of, table_of
from tests.report.parallelism.made_parallelism import failed, make


def scheme(view: View, title: str, name: str, ranks: int) -> list[dict[str, str]]:
    table = table_of(view, title)
    assert table is not None
    return [r for r in rows_of(table) if (r["scheme"], r["ranks"]) == (name, str(ranks))]


def test_the_page_is_made_of_the_records(study: Path, tmp_path: Path) -> None:
    page = write_report(study, tmp_path / "report.html")
    text = page.read_text()
    assert "<b>lost</b>" not in text
    assert "&lt;b&gt;lost&lt;/b&gt;" in text
    for title in ("Bytes of a rank and step", "Memory of a rank", "From scratch", "All-reduce"):
        assert f">{title}</h3>" in text
    assert page.stat().st_size < 1_500_000


def test_a_scheme_has_its_row(made: list[View]) -> None:
    (row,) = scheme(made[0], "Schemes", "mpi ring", 2)
    assert (row["step (ms)"], row["epoch (s)"]) == ("1.60", "0.0320")
    assert row["speed-up"] == "1.25 (1.14–1.38)"
    assert (row["sent"], row["="], row["kept"], row["of formula"]) == (
        ("977 KB", "=", "3.81 MB", "0.0 %")
    )
    assert (row["efficiency"], row["waiting"], row["accuracy"]) == ("62 %", "30 %", "90.00 %")


def test_servers_and_workers_have_rows_of_their_own(made: list[View]) -> None:
    rows = scheme(made[0], "Bytes of a rank and step", "server asynchronous", 4)
    assert [row["role"] for row in rows] == ["server", "3 workers"]


def test_all_charts_that_the_records_allow(study: Path) -> None:
    content, _ = read(study)
    assert [section.title for section in content.sections] == [
        *(
            "Time",
            "Loss",
            "Bytes and memory, compared with their formulas",
            "Staleness",
            "Pipelines",
        ),
        *("A network from scratch, up to many workers", "All-reduce on messages"),
    ]
    names = [figure.name for figure in content.figures]
    assert len(names) == len(set(names))
    wanted = {"overview-1", "speed-up-1-summed-gradients", "pipeline-2-pipeline-1f1b"}
    assert wanted <= set(names)
    assert all(figure.rows for figure in content.figures)


def test_a_study_without_a_completed_run_has_a_page(tmp_path: Path) -> None:
    text = write_report(make(tmp_path / "s", [failed()])).read_text()
    assert "No run of this study has completed yet" in text
    assert "\N{BALLOT X} failed" in text


def test_the_newest_folder_is_the_study_and_not_its_algorithms(study: Path) -> None:
    inside = study / "algorithms" / "ranks-4" / "bench.json"
    os.utime(inside, (2**31, 2**31))
    assert newest_folder(study.parent) == study


@pytest.mark.parametrize("columns", [80, 120])
def test_the_terminal_shows_every_scheme_in_its_width(study: Path, columns: int) -> None:
    console = Console(width=columns, color_system=None)
    with console.capture() as capture:
        content_of(study).print_summary(console)
    lines = capture.get().splitlines()
    head = next(line for line in lines if "epoch s" in line)
    assert ("step ms" in head) == (columns >= 100)
    ring = next(line.split() for line in lines if line.startswith("mpi ring"))
    assert ring[-2:] == ["0.3366", "90.00"]
    assert "=" in ring
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines), "nothing is cut off"
    assert "failed" in capture.get()
