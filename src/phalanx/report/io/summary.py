"""Summary of a measurement of data loading for the terminal: a table and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text

from phalanx.report.comparison import counted
from phalanx.report.content import make_table
from phalanx.report.folder import read_folder
from phalanx.report.io.comparison import CACHE_LABELS, LOADERS, PHRASES, busy, floor_of
from phalanx.report.io.findings import findings, study_findings
from phalanx.report.io.measures import IoMeasure, IoPoint
from phalanx.report.io.study import read_io_study
from phalanx.report.io.tables import columns
from phalanx.report.terminal import finding_lines, print_findings, terminal_table

FORMATS = list(PHRASES)
WIDE_COLUMNS = 124
ONLY_WHEN_WIDE = ("MB/s range", "busy range", "stalls", "ahead")
IN_THE_TITLE = ("cache", "ranks")


def print_summary(folder: Path, console: Console) -> None:
    """Print the findings of a study.

    Raises: UserError when study.json cannot be read.
    """
    study = read_io_study(read_folder(folder).study, folder)
    print_findings(study_findings(study), console)


def show(measure: IoMeasure, console: Console) -> None:
    """Print the table of all ways and the findings of a measurement."""
    wide = console.width >= WIDE_COLUMNS
    for ranks, cache in dict.fromkeys((p.cell.ranks, p.cell.cache) for p in measure.flat):
        points = [p for p in measure.flat if (p.cell.ranks, p.cell.cache) == (ranks, cache)]
        console.print(Text(f"{CACHE_LABELS[cache]} · {counted(ranks, 'rank')}", style="bold"))
        console.print(table_of(measure, points, wide=wide))
    print_findings(findings(measure), console)


def table_of(measure: IoMeasure, points: Sequence[IoPoint], *, wide: bool) -> TerminalTable:
    """A line a way; formats are set apart."""
    points = sorted(points, key=_place)
    paced = {point.cell: busy(point) for point in measure.paced}
    low = [paced.get(point.cell, 1.0) < floor_of(measure) for point in points]
    formats = [point.cell.format for point in points]
    return terminal_table(
        make_table("", "", columns(measure), points),
        left_out=IN_THE_TITLE if wide else IN_THE_TITLE + ONLY_WHEN_WIDE,
        padding=1,
        style=lambda number, column: "red" if column == "busy" and low[number] else "",
        section_ends=[i for i, (a, b) in enumerate(pairwise(formats)) if a != b],
    )


def _place(point: IoPoint) -> tuple[int, int, str, int, int]:
    cell = point.cell
    loader = list(LOADERS).index(cell.loader)
    return FORMATS.index(cell.format), loader, cell.kind, cell.readers, cell.depth


def as_json(measure: IoMeasure) -> dict[str, Any]:
    """Return the content of the table, unrounded, for other programs."""
    return {
        "bench": measure.name,
        "status": measure.status,
        "scaled": measure.bench.setting.scaled if measure.bench else [],
        "utilisation_floor": floor_of(measure),
        "rows": [_row(point) for point in measure.points],
        "left_out": measure.bench.left_out if measure.bench else {},
        "findings": finding_lines(findings(measure)),
    }


def _row(point: IoPoint) -> dict[str, Any]:
    cell = point.cell
    return {
        "format": cell.format,
        "loader": cell.loader,
        "kind": cell.kind,
        "readers": cell.readers,
        "depth": cell.depth,
        "cache": cell.cache,
        "ranks": cell.ranks,
        "compute_s": point.compute_s,
        "samples_per_s": point.samples_per_s,
        "bytes_per_s": point.bytes_per_s,
        "first_batch_s": point.first_s,
        "stalls": point.stalls,
        "utilisation": point.utilisation,
        "resident_before": point.resident,
        "wrong": point.wrong,
        "epoch_s": [epoch.total_s for epoch in point.epochs],
    }
