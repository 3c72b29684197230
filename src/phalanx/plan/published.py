"""Published tables of data-parallel training, predicted from their own first rows. Pure.

Calibrated on the rows of one node; nothing is fitted on the rows that are predicted. Where one more
row is used, the smallest over the network, the share of the sums that a step waits for is taken
from it, and later rows alone are predicted.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from importlib.resources import files
from typing import NamedTuple

from phalanx.comm.traffic import all_reduce_traffic
from phalanx.plan.compute import ComputeTime
from phalanx.plan.data_parallel import PlannedBucket, predict_step
from phalanx.plan.machine import read_machine
from phalanx.plan.predict import STATED_BANDWIDTH, Range, Unknowns, draw_unknowns
from phalanx.plan.sums import LinkSpeed, PlannedSum

_FOLDER = files("phalanx.plan") / "published"
BUCKET_BYTES = 25 * 2**20
"""Bucket of PyTorch's DDP, whose runs these are."""
BACKWARD = 2 / 3
"""Share of the backward pass in a step: twice the arithmetic of the forward pass."""
MESSAGE_S = 15e-6
"""Seconds of a message between nodes with its software."""
GRADIENT_VALUES = {
    "resnet50": 25.56e6,
    "bert-base": 110e6,
    "resnet101": 44.5e6,
    "resnext101_32x8d": 88.8e6,
    "resnext50_32x4d": 25e6,
}
"""Trained values of models whose table does not name them."""
SINGLE_MACHINE = "all rows are of one node, whose links the source does not state"
SERVERS = "parameter servers run beside the workers"
UNKNOWN_NETWORK = "the network or the size of the gradients is not stated"
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

    def step_s(self, row: ScalingRow) -> float:
        return self.batch * row.devices / row.speed


class CaseError(NamedTuple):
    """A predicted row: efficiency per device against the first row, in points of 100."""

    series: ScalingSeries
    row: ScalingRow
    measured: float
    told: Range
    """Prediction from one node."""
    with_row: float | None
    """Prediction with one row over the network; None for that row itself."""
    last_row: float
    """The rule that knows nothing: the efficiency of the last row that was used stays."""
    perfect: float
    """The rule that no further device costs anything: 100."""


def predicted_rows() -> list[CaseError]:
    """Return all rows of the shipped tables that can be predicted."""
    return [case for series in read_series() for case in _cases(series)]


def left_out() -> dict[str, str]:
    """Return the tables that are not predicted, with the reason."""
    return {
        "TF K80 EC2": SERVERS,
        "TF DGX-1": SINGLE_MACHINE,
        "MLPerf v1.0 DLRM": UNKNOWN_NETWORK,
        "MLPerf v1.0 ResNet-50": STRONG,
        "Megatron v1.0 tensor": "tensor parallel",
        "CosmoFlow": UNKNOWN_NETWORK,
    }


def read_series() -> Iterator[ScalingSeries]:
    """Yield the series of the shipped tables, rows from few to many devices."""
    yield from _dlperf()
    yield from _ddp()
    yield from _classic()


def _table(name: str) -> list[dict[str, str]]:
    with (_FOLDER / name).open() as file:
        return list(csv.DictReader(file))


def _bandwidth(machine: str) -> float:
    network = read_machine(machine).network
    assert network is not None, machine
    return network.bandwidth_bytes_per_s


def _grouped(
    table: list[dict[str, str]], *keys: str
) -> Iterator[tuple[tuple[str, ...], list[dict[str, str]]]]:
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in table:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    yield from groups.items()


def _dlperf() -> Iterator[ScalingSeries]:
    link = _bandwidth("dlperf-v100")
    keys = ("model", "precision", "framework", "batch_per_device")
    for (model, precision, framework, batch), rows in _grouped(_table("dlperf_v100.csv"), *keys):
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
        )


def _ddp() -> Iterator[ScalingSeries]:
    link = _bandwidth("dgx-1-v100")
    for (model,), rows in _grouped(_table("pytorch_ddp_v100.csv"), "model"):
        found = [
            ScalingRow(
                max(1, int(r["gpus"]) // 8), int(r["gpus"]), int(r["gpus"]) / float(r["p50_s"])
            )
            for r in rows
            if r["layout"] != "no ddp"
        ]
        yield ScalingSeries("PyTorch DDP V100", model, 4 * GRADIENT_VALUES[model], link, 1.0, found)


CLASSIC = {"BERT-large DGX-1": (2, 50e9), "Kempner": (4, 25e9)}
"""Bytes of a gradient's value, and of a node's links a second (4 × EDR; HDR), by table."""


def _classic() -> Iterator[ScalingSeries]:
    for (table, model), rows in _grouped(_table("classic_scaling.csv"), "table", "model"):
        if table not in CLASSIC:
            continue
        itemsize, link = CLASSIC[table]
        found = []
        for r in rows:
            value, devices = float(r["value"]), int(r["devices"])
            speed = 1 / value if "seconds" in r["quantity"] else value
            found.append(ScalingRow(int(r["nodes"]), devices, speed))
        values, batch = float(rows[0]["gradient_values"]), float(rows[0]["batch_per_device"])
        whole_run = "of the run" in rows[0]["quantity"]
        yield ScalingSeries(table, model, values * itemsize, link, batch, found, whole_run)


def _cases(series: ScalingSeries) -> list[CaseError]:
    """Return the rows over the network; of several nodes the first row is then the whole node."""
    inside = [row for row in series.rows if row.nodes == 1]
    beyond = [row for row in series.rows if row.nodes > 1]
    base, node = inside[0], inside[-1]
    base_s, node_s = series.step_s(base), series.step_s(node)

    def efficiency(seconds: float) -> float:
        return 100 * base_s / seconds

    cases: list[CaseError] = []
    for row in beyond:
        first, last = beyond[0], node_s
        known = inside if row is first else [*inside, first]
        with_row = None
        if series.is_whole_run:
            told = [draw.run * _whole_run_s(series, known, row) for draw in draw_unknowns()]
            with_row = efficiency(_whole_run_s(series, known, row))
        else:
            told = [_step_s(series, node_s, row, draw) for draw in draw_unknowns()]
            if row is not first:
                waited = max(0.0, series.step_s(first) - node_s) / _sums_s(series, first)
                with_row = efficiency(node_s + waited * _sums_s(series, row))
        if row is not first:
            last = series.step_s(first)
        cases.append(
            CaseError(
                series=series,
                row=row,
                measured=efficiency(series.step_s(row)),
                told=Range.of([efficiency(seconds) for seconds in told]),
                with_row=None if row is first else with_row,
                last_row=efficiency(last),
                perfect=efficiency(node_s),
            )
        )
    return cases


def _whole_run_s(series: ScalingSeries, known: list[ScalingRow], row: ScalingRow) -> float:
    """Return the same of a run of a fixed number of samples: a part that the devices divide, and
    one outside the steps that none divides, by least squares of relative errors."""
    shares = [(1 / each.devices, each.speed) for each in known]
    xx, xy, yy, x, y = (
        sum(values)
        for values in zip(
            *((s * s * v * v, s * v * v, v * v, s * v, v) for s, v in shares), strict=True
        )
    )
    determinant = xx * yy - xy * xy
    divided, fixed = (x * yy - y * xy) / determinant, (xx * y - xy * x) / determinant
    return float(series.batch * row.devices * (divided / row.devices + fixed))


def _link(series: ScalingSeries, place: float = 0.5) -> LinkSpeed:
    low, high = STATED_BANDWIDTH
    reached = low + place * (high - low)
    return LinkSpeed(reached * series.bandwidth_bytes_per_s, MESSAGE_S, 0.0)


def _buckets(series: ScalingSeries, row: ScalingRow) -> list[PlannedBucket]:
    """Return the sums of a step: each byte of a node's sum crosses its links once each way."""
    number = max(1, math.ceil(series.gradient_bytes / BUCKET_BYTES))
    size = int(series.gradient_bytes / number)
    moved = all_reduce_traffic(size // 2, 2, 0, row.nodes)
    rounds = 2 * (row.devices - 1)
    planned = PlannedSum("lanes", size, moved, rounds, 0.0, float(moved.sent_bytes))
    return [PlannedBucket((place + 1) / number, planned) for place in range(number)]


def _sums_s(series: ScalingSeries, row: ScalingRow) -> float:
    return sum(bucket.sum.seconds(_link(series)) for bucket in _buckets(series, row))


def _step_s(series: ScalingSeries, node_s: float, row: ScalingRow, draw: Unknowns) -> float:
    """Return the seconds of a step on several nodes, that of a whole node known."""
    time = ComputeTime(0.0, (1 - BACKWARD) * node_s, BACKWARD * node_s, 0.0, 0.0)
    buckets, link = _buckets(series, row), _link(series, draw.bandwidth)
    hidden = predict_step(time, buckets, link).step_s
    shown = predict_step(time, buckets, link, hides=False).step_s
    return draw.run * (draw.hidden * hidden + (1 - draw.hidden) * shown)
