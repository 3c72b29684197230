"""Published tables of data-parallel and sharded training, predicted from their first rows. Pure.

Calibrated on the rows of one node, or on the smallest row where a table has none of one; nothing is
fitted on the rows that are predicted. Where one more row is used, the smallest over the network,
every draw of the unknowns is corrected by the ratio of what it took to what the draw says of it, as
`phalanx plan --with` does, and later rows alone are predicted.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import NamedTuple, TypeVar

from phalanx.plan.compute import ComputeTime
from phalanx.plan.data_parallel import PlannedBucket, step_spans
from phalanx.plan.events import length_s
from phalanx.plan.predict import (
    SEED,
    STATED_BANDWIDTH,
    Range,
    Unknowns,
    draw_link,
    draw_unknowns,
)
from phalanx.plan.sums import RankLayout, plan_sum

Item = TypeVar("Item")
Name = TypeVar("Name", str, tuple[str, str])
BUCKET_BYTES = 25 * 2**20
"""Bucket of PyTorch's DDP, whose runs most of these are."""
MOST_BUCKETS = 24
"""Buckets of a large model, as many as it has blocks of layers."""
BACKWARD = 2 / 3
"""Share of the backward pass in a step: twice the arithmetic of the forward pass."""
SHARDED_PASSES = 0.9
"""Share of both passes, behind which sharded training gathers parameters, in a step."""
SHARDED_SUMS = 1.5
"""Messages of sharded training as multiple of an all-reduce: two gathers and a reduce-scatter."""


class ScalingRow(NamedTuple):
    """A row of a table: speed is in any unit, larger is better."""

    nodes: int
    devices: int
    speed: float


class ScalingSeries(NamedTuple):
    """Rows of one program on growing numbers of devices, the batch of each the same."""

    table: str
    name: str
    is_sharded: bool
    is_whole_run: bool
    """True if speeds are 1 ÷ seconds of a run of a fixed number of samples."""
    gradient_bytes: float
    most_bytes: float
    """Largest multiple of `gradient_bytes` that a step may sum, as far as the table says."""
    most_passes: float
    """Most passes over which a step may sum, as far as the table says."""
    bandwidth_bytes_per_s: float
    batch: float
    """Samples of a device; of a table of times, any number."""
    rows: list[ScalingRow]

    def step_s(self, row: ScalingRow) -> float:
        return self.batch * row.devices / row.speed


class CaseError(NamedTuple):
    """A predicted row: efficiency per device against the first row, in points of 100."""

    series: ScalingSeries
    row: ScalingRow
    measured: float
    told: Range
    """Prediction from one node."""
    with_row: Range | None
    """Prediction with one row over the network; None for that row itself."""
    last_row: float
    """The rule that knows nothing: the efficiency of the last row that was used stays."""
    perfect: float
    """The rule that no further device costs anything."""


def predicted_rows(least_bandwidth: float = STATED_BANDWIDTH[0]) -> list[CaseError]:
    """Return all rows of the shipped tables that can be predicted.

    least_bandwidth: smallest share of a stated bandwidth that programs are taken to reach.
    """
    draws = _draw_all()
    return [case for series in read_series() for case in _cases(series, draws, least_bandwidth)]


def left_out() -> dict[str, str]:
    """Return the tables that are not predicted, with the reason."""
    return {row["table"]: row["not_predicted"] for row in _rows() if row["not_predicted"]}


def read_series() -> list[ScalingSeries]:
    """Return the series of the shipped tables, rows from few to many devices."""
    predicted = [row for row in _rows() if not row["not_predicted"]]
    groups = grouped(predicted, lambda row: (row["table"], row["series"]))
    return [
        ScalingSeries(
            table=table,
            name=name,
            is_sharded=rows[0]["kind"] == "sharded",
            is_whole_run=rows[0]["quantity"] == "seconds of the run",
            **{column: float(rows[0][column]) for column in ScalingSeries._fields[4:9]},
            rows=[ScalingRow(int(r["nodes"]), int(r["devices"]), _speed(r)) for r in rows],
        )
        for (table, name), rows in groups.items()
    ]


def _rows() -> list[dict[str, str]]:
    with (files("phalanx.plan") / "published" / "scaling.csv").open() as file:
        return list(csv.DictReader(file))


def _speed(row: dict[str, str]) -> float:
    value = float(row["value"])
    match row["quantity"]:
        case "seconds of a step":
            return float(row["batch"]) * int(row["devices"]) / value
        case "seconds of the run":
            return 1 / value
        case _:
            return value


def grouped(items: Iterable[Item], name_of: Callable[[Item], Name]) -> dict[Name, list[Item]]:
    """Return items by their names, both in the order in which they come."""
    groups: dict[Name, list[Item]] = {}
    for item in items:
        groups.setdefault(name_of(item), []).append(item)
    return groups


class TableDraw(NamedTuple):
    """A draw of what is not known of a table."""

    unknowns: Unknowns
    """Unknowns of every target."""
    gradient: float
    """Place between the bounds of the bytes that a step sums."""
    passes: float
    """Place between the bounds of the passes over which it does."""


def _draw_all() -> list[TableDraw]:
    more = draw_unknowns(seed=SEED + 1)
    return [
        TableDraw(a, b.bandwidth, b.latency) for a, b in zip(draw_unknowns(), more, strict=True)
    ]


def _cases(
    series: ScalingSeries, draws: Sequence[TableDraw], least_bandwidth: float
) -> list[CaseError]:
    """Return the rows beyond the nodes of the first, of which the largest row is the base."""
    inside = [row for row in series.rows if row.nodes == series.rows[0].nodes]
    beyond = series.rows[len(inside) :]
    first, node, base_s = beyond[0], inside[-1], series.step_s(inside[0])
    steps = {}
    for row in () if series.is_whole_run else (node, *beyond):
        buckets = _buckets(series, row)
        steps[row] = [
            _step_s(series, series.step_s(node), buckets, draw, least_bandwidth) for draw in draws
        ]

    def efficiency(seconds: float) -> float:
        return 100 * base_s / seconds

    def predicted(known: ScalingRow, row: ScalingRow) -> Range:
        if series.is_whole_run:
            rows = series.rows[: series.rows.index(known) + 1]
            by_pairs = _whole_run_steps(series, rows, row)
            told = [by_pairs[int(draw.gradient * len(by_pairs))] for draw in draws]
        else:
            measured_s = series.step_s(known)
            told = [
                measured_s / here * there
                for here, there in zip(steps[known], steps[row], strict=True)
            ]
        pairs = zip(draws, told, strict=True)
        return Range.of([efficiency(draw.unknowns.run * seconds) for draw, seconds in pairs])

    return [
        CaseError(
            series=series,
            row=row,
            measured=efficiency(series.step_s(row)),
            told=predicted(node, row),
            with_row=None if row is first else predicted(first, row),
            last_row=efficiency(series.step_s(node if row is first else first)),
            perfect=efficiency(series.step_s(node)),
        )
        for row in beyond
    ]


def _whole_run_steps(
    series: ScalingSeries, known: Sequence[ScalingRow], row: ScalingRow
) -> list[float]:
    """Return the same of a run of a fixed number of samples, from short to long: of a part that the
    devices divide and one outside the steps that none divides, as each pair of rows says."""
    found = []
    for few, many in itertools.combinations(known, 2):
        share = 1 / few.devices - 1 / many.devices
        divided = (1 / few.speed - 1 / many.speed) / share
        fixed = 1 / few.speed - divided / few.devices
        found.append(series.batch * row.devices * (divided / row.devices + fixed))
    return sorted(found)


def _buckets(series: ScalingSeries, row: ScalingRow) -> list[PlannedBucket]:
    """Return the sums of a step between nodes; what a node sums by itself is in its own row."""
    if row.nodes == 1:
        return []
    number = min(MOST_BUCKETS, max(1, math.ceil(series.gradient_bytes / BUCKET_BYTES)))
    size = int((SHARDED_SUMS if series.is_sharded else 1) * series.gradient_bytes / number)
    layout = RankLayout(row.devices, row.devices // row.nodes)
    between = plan_sum(size, 4, layout, [])._replace(node_s=0.0)
    return [PlannedBucket((place + 1) / number, between) for place in range(number)]


def _step_s(
    series: ScalingSeries,
    node_s: float,
    buckets: Sequence[PlannedBucket],
    draw: TableDraw,
    least_bandwidth: float,
) -> float:
    """Return the seconds of a pass on several nodes, that of a whole node known."""
    if not buckets:
        return node_s
    unknowns = draw.unknowns
    summed = 1 + draw.gradient * (series.most_bytes - 1)
    reached = least_bandwidth, STATED_BANDWIDTH[1]
    link = draw_link(series.bandwidth_bytes_per_s / summed, None, reached, unknowns)
    link = link._replace(overhead_s=0.0)
    hides = SHARDED_PASSES if series.is_sharded else BACKWARD
    time = ComputeTime(0.0, (1 - hides) * node_s, hides * node_s, 0.0, 0.0)
    hidden, shown = (length_s(step_spans(time, buckets, link, hides=h)) for h in (True, False))
    exposed_s = unknowns.hidden * hidden + (1 - unknowns.hidden) * shown - node_s
    return node_s + exposed_s / math.pow(series.most_passes, draw.passes)
