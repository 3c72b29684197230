"""Reads a folder of measured collectives: one measurement, or several beside each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from phalanx.errors import UserError
from phalanx.records.collectives import MeasuredEvent
from phalanx.records.files import rank_file, read_bench, read_events
from phalanx.records.owner import has_died
from phalanx.report.collectives.measures import BenchMeasure, measure_bench
from phalanx.report.completeness import DIED, check_complete


def holds_benches(folder: Path) -> bool:
    return bool(_bench_folders(folder))


def read_benches(folder: Path) -> tuple[BenchMeasure, ...]:
    """Read every measurement in `folder`, or `folder` itself, by name.

    Of several, a damaged one is an entry with its error. Raises UserError when there is none, or
    the only one cannot be read.
    """
    folders = _bench_folders(folder)
    if not folders:
        raise UserError(f"{folder} holds no bench.json, nor folders with one")
    measures = tuple(_read(path) for path in folders)
    if len(measures) == 1 and measures[0].status == "damaged":
        raise UserError(measures[0].error or f"{folder} is damaged")
    return measures


def _bench_folders(folder: Path) -> list[Path]:
    if (folder / "bench.json").exists():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/bench.json"))


def _read(folder: Path) -> BenchMeasure:
    try:
        bench = read_bench(folder)
        files = [rank_file(folder, rank) for rank in range(bench.setting.ranks)]
        ranks = {file: list(read_events(file)) for file in files}
        if bench.outcome.status == "completed":
            check_complete(folder, ranks, MeasuredEvent)
    except (ValueError, OSError) as error:
        return BenchMeasure(name=folder.name, status="damaged", error=str(error))
    measure = measure_bench(bench, list(ranks.values()))
    return (
        replace(measure, status="interrupted", error=DIED) if has_died(bench, folder) else measure
    )
