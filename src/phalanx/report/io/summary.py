"""Summary of a measurement of data loading for the terminal: a table and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from phalanx.report.comparison import counted
from phalanx.report.io.comparison import CACHE_LABELS, LOADERS, PHRASES, floor_of
from phalanx.report.io.findings import findings
from phalanx.report.io.measures import IoMeasure, IoPoint
from phalanx.report.io.tables import COLUMNS, row
from phalanx.report.terminal import print_findings

FORMATS = list(PHRASES)
WIDE_COLUMNS = 124
ONLY_WHEN_WIDE = frozenset({"MB/s range#", "busy range#", "stalls#", "ahead#"})
IN_THE_TITLE = frozenset({"cache", "ranks#"})


def show(measure: IoMeasure, console: Console) -> None:
    """Print the table of all ways and the findings."""
    wide = console.width >= WIDE_COLUMNS
    for ranks, cache in dict.fromkeys((p.cell.ranks, p.cell.cache) for p in measure.flat):
        points = [p for p in measure.flat if (p.cell.ranks, p.cell.cache) == (ranks, cache)]
        console.print(Text(f"{CACHE_LABELS[cache]} · {counted(ranks, 'rank')}", style="bold"))
        console.print(table_of(measure, points, wide=wide))
    print_findings(findings([measure]), console)


def table_of(measure: IoMeasure, points: Sequence[IoPoint], *, wide: bool) -> Table:
    """A line a way; formats are set apart."""
    names = COLUMNS.split("|")
    left_out = IN_THE_TITLE if wide else IN_THE_TITLE | ONLY_WHEN_WIDE
    shown = [i for i, name in enumerate(names) if name not in left_out]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for i in shown:
        justify: JustifyMethod = "right" if names[i].endswith("#") else "left"
        table.add_column(names[i].removesuffix("#"), justify=justify, no_wrap=True)
    floor = floor_of(measure)
    points = sorted(points, key=_place)
    for point, after in zip(points, [*points[1:], None], strict=True):
        cells = row(measure, point)
        paced = next((p for p in measure.paced if p.cell == point.cell), None)
        low = paced is not None and (paced.utilisation or 0.0) < floor
        style = {"busy#": "red" if low else ""}
        table.add_row(
            *(Text(cells[i], style=style.get(names[i], "")) for i in shown),
            end_section=after is None or after.cell.format != point.cell.format,
        )
    return table


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
        "findings": [
            f"{topic.title}: {sentence.label + ': ' if sentence.label else ''}{sentence.text}"
            for topic in findings([measure])
            for sentence in topic.sentences
        ],
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
