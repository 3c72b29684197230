"""Measured collectives as rows for charts: a row for each path and size."""

from __future__ import annotations

from phalanx.report.charts.figure import Row
from phalanx.report.collectives.bandwidth import bus_bandwidth
from phalanx.report.collectives.comparison import CollectiveResults
from phalanx.report.collectives.measures import CollectivePoint
from phalanx.report.collectives.tables import GIGABYTE, in_order
from phalanx.report.format import size


def rows_of(results: CollectiveResults) -> list[Row]:
    """A row for each path and size."""
    return [_row(results, point) for n in results.sizes for point in in_order(results, n)]


def _row(results: CollectiveResults, point: CollectivePoint) -> Row:
    best = next((p for p in results.at(point.num_bytes) if p.is_ours), None)
    floor_s = point.floor.seconds if point.floor else None
    return {
        "path": point.label,
        "key": point.path,
        "ours": point.is_ours,
        "bytes": point.num_bytes,
        "size": size(point.num_bytes),
        "count": point.count,
        "calls": len(point.times_s),
        "min_us": point.minimum_s * 1e6,
        "median_us": point.median_s * 1e6,
        "p99_us": point.p99_s * 1e6,
        "algbw": _in_gigabytes(point.algorithm_bandwidth),
        "busbw": _in_gigabytes(point.bus_bandwidth),
        "wrong": point.wrong,
        "slower": point.median_s / best.median_s if best else None,
        "floor_us": None if floor_s is None else floor_s * 1e6,
        "floor_busbw": _floor_bandwidth(point, floor_s),
        "times_floor": point.times_floor,
    }


def _floor_bandwidth(point: CollectivePoint, floor_s: float | None) -> float | None:
    if floor_s is None or not point.num_bytes:
        return None
    return bus_bandwidth(point.collective, point.ranks, point.num_bytes, floor_s) / GIGABYTE


def _in_gigabytes(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / GIGABYTE
