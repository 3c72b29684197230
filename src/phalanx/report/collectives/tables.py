"""The tables of a page of collectives. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.report.collectives.comparison import PHRASES, CollectiveResults
from phalanx.report.collectives.measures import BenchMeasure, CollectivePoint
from phalanx.report.content import Table, make_table
from phalanx.report.format import UNKNOWN, duration, joined, microseconds, size

GIGABYTE = 1e9  # of bandwidths, as in nccl-tests


def result_tables(all_results: Sequence[CollectiveResults]) -> list[Table]:
    """Return a table for each collective of a run."""
    return [result_table(results) for results in all_results]


def result_table(results: CollectiveResults, *, unit: str = " µs") -> Table:
    """Return the paths of a collective, size by size, in the columns of nccl-tests.

    unit: behind the names of times.
    """
    times = f"min{unit}#|median{unit}#|p99{unit}#"
    return make_table(
        results.title,
        f"{results.timing}: its slowest rank's. Bandwidths in GB/s of 10⁹ bytes, from the "
        f"median, as nccl-tests defines them. {results.points[0].ranks} ranks.",
        f"size#|count#|type|op|path|{times}|algbw#|busbw#|wrong#|×floor#",
        [row(results, point) for n in results.sizes for point in in_order(results, n)],
    )


def in_order(results: CollectiveResults, num_bytes: int) -> list[CollectivePoint]:
    """The paths at a size, in the order in which they were asked for."""
    asked = results.measure.bench.setting.paths if results.measure.bench else []
    return sorted(
        results.at(num_bytes), key=lambda p: asked.index(p.path) if p.path in asked else len(asked)
    )


def row(results: CollectiveResults, point: CollectivePoint) -> tuple[str, ...]:
    """The cells of a row."""
    setting = results.measure.bench.setting if results.measure.bench else None
    reduces = point.collective in ("all_reduce", "reduce_scatter")
    return (
        size(point.num_bytes) if point.num_bytes else UNKNOWN,
        str(point.count),
        setting.dtype if setting and point.num_bytes else UNKNOWN,
        setting.op if setting and reduces else UNKNOWN,
        point.label,
        microseconds(point.minimum_s),
        microseconds(point.median_s),
        microseconds(point.p99_s),
        gigabytes(point.algorithm_bandwidth),
        gigabytes(point.bus_bandwidth),
        str(point.wrong),
        UNKNOWN if point.times_floor is None else factor(point.times_floor),
    )


def gigabytes(bytes_per_s: float | None) -> str:
    """A bandwidth for a column of GB/s."""
    return UNKNOWN if bytes_per_s is None else f"{bytes_per_s / GIGABYTE:.2f}"


def factor(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def machine_tables(measures: Sequence[BenchMeasure]) -> list[Table]:
    """Return tables of the machine's own bandwidth and latency, as measured in each run."""
    rows = []
    for measure in measures:
        machine = measure.machine
        rows += [
            (
                measure.mpi,
                size(working_set),
                gigabytes(machine.copy.get(working_set)),
                gigabytes(machine.add.get(working_set)),
            )
            for working_set in sorted(machine.copy)
        ]
    trips = [
        f"{measure.mpi}: {duration(measure.machine.round_trip_s)} ({measure.flags_by})"
        for measure in measures
        if measure.machine.round_trip_s is not None
    ]
    note = "Bytes read and written by all ranks together, each on memory of its own."
    if trips:
        note += f" A flag's way between two ranks, there and back: {joined(trips)}."
    table = make_table("This machine", note, "run|a rank touches#|copying GB/s#|adding GB/s#", rows)
    return [table] if rows else []


def runs_table(measures: Sequence[BenchMeasure]) -> Table:
    """Return a table of every measurement with its status."""
    rows = []
    for measure in measures:
        bench = measure.bench
        rows.append(
            (
                measure.name,
                measure.status,
                measure.mpi,
                str(bench.setting.ranks) if bench else UNKNOWN,
                joined([PHRASES[c] for c in bench.setting.collectives]) if bench else UNKNOWN,
                f"{sum(len(point.times_s) for point in measure.points):,}",
                measure.error or "",
            )
        )
    return make_table("Runs", "", "run|status|MPI|ranks#|collectives|calls#|error", rows)
