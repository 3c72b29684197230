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
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from typing import NamedTuple, TypeVar

from phalanx.plan.compute import ComputeTime
from phalanx.plan.data_parallel import PlannedBucket, predict_step
from phalanx.plan.machine import read_machine
from phalanx.plan.predict import (
    SEED,
    STATED_BANDWIDTH,
    UNKNOWN_LATENCY_S,
    Range,
    Unknowns,
    draw_unknowns,
)
from phalanx.plan.sums import LinkSpeed, RankLayout, plan_sum

_FOLDER = files("phalanx.plan") / "published"
Item = TypeVar("Item")
Name = TypeVar("Name", str, tuple[str, ...])
Row = dict[str, str]
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
MIXED_PRECISION = 2.0
"""Times the bytes of half precision that gradients may have: some programs sum them in float32,
which tables do not state."""
MOST_PASSES = 16
"""Passes over which a step may sum gradients, where a table does not state it."""
GRADIENT_VALUES = {
    "resnet50": 25.56e6,
    "bert-base": 110e6,
    "resnet101": 44.5e6,
    "resnext101_32x8d": 88.8e6,
    "resnext50_32x4d": 25e6,
}
"""Trained values of models whose table does not name them."""
SEQUENCE = 2048
"""Tokens of a sample of llm-foundry's table."""
H100_NODE = 400e9
"""Bytes a second out of a node of 8 H100 with a port of 400 Gbit/s each: as such nodes are sold,
for a table that does not state it."""
SINGLE_MACHINE = "all rows are of one node, whose links the source does not state"
SERVERS = "parameter servers run beside the workers"
UNKNOWN_NETWORK = "the network or the size of the gradients is not stated"
INPUT = "input-bound where more nodes hold the data in memory; size of the gradients not stated"
STRONG = "strong scaling: one global batch, and no row of one rank to split the step by"


class ScalingRow(NamedTuple):
    """A row of a table: speed is in any unit, larger is better."""

    nodes: int
    devices: int
    speed: float


class ScalingSeries(NamedTuple):
    """Rows of one program on growing numbers of devices, the batch of each the same."""

    table: str
    name: str
    gradient_bytes: float
    bandwidth_bytes_per_s: float
    batch: float
    """Samples of a device; of a table of times, any number."""
    rows: list[ScalingRow]
    is_whole_run: bool = False
    """True if speeds are 1 ÷ seconds of a run of a fixed number of samples."""
    most_bytes: float = 1.0
    """Largest multiple of `gradient_bytes` that a step may sum, as far as the table says."""
    most_passes: int = 1
    """Most passes over which a step may sum, as far as the table says."""
    sums: float = 1.0
    """Messages of a step as multiple of one all-reduce."""
    hides: float = BACKWARD
    """Largest share of a step that messages may hide behind."""

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
    return {
        "TF K80 EC2": SERVERS,
        "TF DGX-1": SINGLE_MACHINE,
        "MLPerf v1.0 DLRM": UNKNOWN_NETWORK,
        "MLPerf v1.0 ResNet-50": STRONG,
        "Megatron v1.0 tensor": "tensor parallel",
        "CosmoFlow": INPUT,
    }


def read_series() -> Iterator[ScalingSeries]:
    """Yield the series of the shipped tables, rows from few to many devices."""
    yield from _dlperf()
    yield from _ddp()
    yield from _classic()
    yield from _sharded()


def _bandwidth(machine: str) -> float:
    network = read_machine(machine).network
    assert network is not None, machine
    return network.bandwidth_bytes_per_s


def grouped(items: Iterable[Item], name_of: Callable[[Item], Name]) -> dict[Name, list[Item]]:
    """Return items by their names, both in the order in which they come."""
    groups: dict[Name, list[Item]] = {}
    for item in items:
        groups.setdefault(name_of(item), []).append(item)
    return groups


def _by_columns(table: str, *columns: str) -> Iterable[tuple[tuple[str, ...], list[Row]]]:
    """Return the rows of a shipped table by what these columns say."""
    with (_FOLDER / table).open() as file:
        return grouped(csv.DictReader(file), lambda row: tuple(row[c] for c in columns)).items()


def _dlperf() -> Iterator[ScalingSeries]:
    link = _bandwidth("dlperf-v100")
    keys = ("model", "precision", "framework", "batch_per_device")
    for (model, precision, framework, batch), rows in _by_columns("dlperf_v100.csv", *keys):
        itemsize = 2 if precision == "amp" else 4
        yield ScalingSeries(
            f"DLPerf {model} {precision}",
            f"{framework}, batch {batch}",
            GRADIENT_VALUES[model] * itemsize,
            link,
            float(batch),
            [
                ScalingRow(int(r["nodes"]), int(r["devices"]), float(r["samples_per_s"]))
                for r in rows
            ],
            most_bytes=MIXED_PRECISION if precision == "amp" else 1.0,
        )


def _ddp() -> Iterator[ScalingSeries]:
    link = _bandwidth("dgx-1-v100")
    for (model,), rows in _by_columns("pytorch_ddp_v100.csv", "model"):
        found = [
            ScalingRow(
                max(1, int(r["gpus"]) // 8), int(r["gpus"]), int(r["gpus"]) / float(r["p50_s"])
            )
            for r in rows
            if r["layout"] != "no ddp"
        ]
        yield ScalingSeries("PyTorch DDP V100", model, 4 * GRADIENT_VALUES[model], link, 1.0, found)


CLASSIC = {"BERT-large DGX-1": (2, 50e9, MOST_PASSES), "Kempner": (4, 25e9, 1)}
"""Bytes of a gradient's value, of a node's links a second (4 × EDR; HDR), and passes of a step that
may sum gradients, by table."""


def _classic() -> Iterator[ScalingSeries]:
    for (table, model), rows in _by_columns("classic_scaling.csv", "table", "model"):
        if table not in CLASSIC:
            continue
        itemsize, link, most_passes = CLASSIC[table]
        found = []
        for r in rows:
            value, devices = float(r["value"]), int(r["devices"])
            speed = 1 / value if "seconds" in r["quantity"] else value
            found.append(ScalingRow(int(r["nodes"]), devices, speed))
        yield ScalingSeries(
            table,
            model,
            float(rows[0]["gradient_values"]) * itemsize,
            link,
            float(rows[0]["batch_per_device"]),
            found,
            is_whole_run="of the run" in rows[0]["quantity"],
            most_bytes=MIXED_PRECISION if itemsize == 2 else 1.0,
            most_passes=most_passes,
        )


def _sharded() -> Iterator[ScalingSeries]:
    """Yield the series of one micro-batch, whatever number of them a step has: parameters are
    gathered for each."""
    links = {"h100_80gb": H100_NODE, "a100_40gb": _bandwidth("mosaicml-a100")}
    keys = ("hardware", "model", "micro_batch")
    for (hardware, model, batch), rows in _by_columns("llm_foundry_fsdp.csv", *keys):
        found = sorted(
            ScalingRow(int(r["gpus"]) // 8, int(r["gpus"]), float(r["tokens_per_s"])) for r in rows
        )
        if len(found) == 1:
            continue
        yield ScalingSeries(
            f"FSDP {hardware}",
            f"{model}, micro-batch {batch}",
            2 * float(rows[0]["parameters"]),
            links[hardware],
            SEQUENCE * float(batch),
            found,
            most_bytes=4 / 3 if rows[0]["mixed"] == "DEFAULT" else 1.0,  # may sum in float32
            sums=SHARDED_SUMS,
            hides=SHARDED_PASSES,
        )


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
    size = int(series.sums * series.gradient_bytes / number)
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
    reached = least_bandwidth + unknowns.bandwidth * (STATED_BANDWIDTH[1] - least_bandwidth)
    summed = 1 + draw.gradient * (series.most_bytes - 1)
    least_s, most_s = UNKNOWN_LATENCY_S
    link = LinkSpeed(
        reached / summed * series.bandwidth_bytes_per_s,
        least_s * math.pow(most_s / least_s, unknowns.latency),
        overhead_s=0.0,
    )
    time = ComputeTime(0.0, (1 - series.hides) * node_s, series.hides * node_s, 0.0, 0.0)
    hidden, shown = (predict_step(time, buckets, link, hides=h).step_s for h in (True, False))
    exposed_s = unknowns.hidden * hidden + (1 - unknowns.hidden) * shown - node_s
    return node_s + exposed_s / math.pow(series.most_passes, draw.passes)
