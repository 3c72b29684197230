"""Reads what `phalanx bench io` left, and a study made of such."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phalanx.errors import UserError
from phalanx.records.files import rank_file, read_events, read_io
from phalanx.records.io import IoEndEvent
from phalanx.records.owner import has_died
from phalanx.report.completeness import DIED, check_complete
from phalanx.report.io.measures import IoMeasure, measure_io


def holds_io(folder: Path) -> bool:
    return (folder / "io.json").exists()


def read_io_measure(folder: Path) -> IoMeasure:
    """Raises: UserError when the records cannot be read."""
    measure = read_io_of_study(folder)
    if measure.status in ("damaged", "missing"):
        raise UserError(measure.error or f"{folder} holds no io.json")
    return measure


def read_io_of_study(folder: Path) -> IoMeasure:
    """The same; what is missing or damaged is an entry with its status."""
    if not holds_io(folder):
        return IoMeasure(name=folder.name, status="missing")
    try:
        bench = read_io(folder)
        files = [
            rank_file(folder / f"ranks-{ranks}", rank)
            for ranks in bench.setting.ranks
            for rank in range(ranks)
        ]
        events = {file: list(read_events(file)) for file in files}
        if bench.outcome.status == "completed":
            check_complete(folder, events, IoEndEvent)
    except (ValueError, OSError) as error:
        return IoMeasure(name=folder.name, status="damaged", error=str(error))
    measure = measure_io(bench, events.values())
    return replace(measure, status="interrupted", error=DIED) if has_died(bench) else measure
