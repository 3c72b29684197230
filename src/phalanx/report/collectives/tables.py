"""The tables of a page of collectives. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.report.collectives.comparison import PHRASES, CollectiveResults
from phalanx.report.collectives.measures import BenchMeasure, CollectivePoint
from phalanx.report.content import Column, Table, make_table, words
from phalanx.report.format import duration, grouped, joined, microseconds, size

GIGABYTE = 1e9  # of bandwidths, as in nccl-tests


def result_table(results: CollectiveResults, *, unit: str = " µs") -> Table:
    """Return the paths of a collective, size by size, in the columns of nccl-tests.

    unit: behind the names of times.
    """
    setting = results.measure.bench.setting if results.measure.bench else None
    reduces = results.collective in ("all_reduce", "reduce_scatter")
    op = setting.op if setting and reduces else None
    columns: list[Column[CollectivePoint]] = [
        Column("size", lambda p: p.num_bytes or None, size),
        Column("count", lambda p: p.count),
        words("type", lambda p: setting.dtype if setting and p.num_bytes else None),
        words("op", lambda _: op),
        words("path", lambda p: p.label),
        Column(f"min{unit}", lambda p: p.minimum_s, microseconds),
        Column(f"median{unit}", lambda p: p.median_s, microseconds),
        Column(f"p99{unit}", lambda p: p.p99_s, microseconds),
        Column("algbw", lambda p: p.algorithm_bandwidth, gigabytes),
        Column("busbw", lambda p: p.bus_bandwidth, gigabytes),
        Column("wrong", lambda p: p.wrong),
        Column("×floor", lambda p: p.times_floor, factor),
    ]
    return make_table(
        results.title,
        f"{results.timing}: its slowest rank's. Bandwidths in GB/s of 10⁹ bytes, from the "
        f"median, as nccl-tests defines them. {results.points[0].ranks} ranks.",
        columns,
        [point for n in results.sizes for point in in_order(results, n)],
    )


def in_order(results: CollectiveResults, num_bytes: int) -> list[CollectivePoint]:
    """The paths at a size, in the order in which they were asked for."""
    asked = results.measure.bench.setting.paths if results.measure.bench else []
    return sorted(
        results.at(num_bytes), key=lambda p: asked.index(p.path) if p.path in asked else len(asked)
    )


def gigabytes(bytes_per_s: float) -> str:
    """A bandwidth for a column of GB/s."""
    return f"{bytes_per_s / GIGABYTE:.2f}"


def factor(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def machine_table(measures: Sequence[BenchMeasure]) -> Table:
    """Return the machine's own bandwidth and latency, as measured in each run."""
    trips = [
        f"{measure.mpi}: {duration(measure.machine.round_trip_s)} ({measure.flags_by})"
        for measure in measures
        if measure.machine.round_trip_s is not None
    ]
    note = "Bytes read and written by all ranks together, each on memory of its own."
    if trips:
        note += f" A flag's way between two ranks, there and back: {joined(trips)}."
    columns: list[Column[tuple[BenchMeasure, int]]] = [
        words("run", lambda pair: pair[0].mpi),
        Column("a rank touches", lambda pair: pair[1], size),
        Column("copying GB/s", lambda pair: pair[0].machine.copy.get(pair[1]), gigabytes),
        Column("adding GB/s", lambda pair: pair[0].machine.add.get(pair[1]), gigabytes),
    ]
    pairs = [(measure, touched) for measure in measures for touched in sorted(measure.machine.copy)]
    return make_table("This machine", note, columns, pairs)


RUN_COLUMNS: tuple[Column[BenchMeasure], ...] = (
    words("run", lambda m: m.name),
    words("status", lambda m: m.status),
    words("MPI", lambda m: m.mpi),
    Column("ranks", lambda m: m.bench and m.bench.setting.ranks),
    words(
        "collectives",
        lambda m: m.bench and joined([PHRASES[c] for c in m.bench.setting.collectives]),
    ),
    Column("calls", lambda m: sum(len(point.times_s) for point in m.points), grouped),
    words("error", lambda m: m.error or ""),
)


def runs_table(measures: Sequence[BenchMeasure]) -> Table:
    """Return a table of every measurement with its status."""
    return make_table("Runs", "", RUN_COLUMNS, measures)
