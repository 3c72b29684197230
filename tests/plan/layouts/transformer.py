"""A transformer's flops and bytes by layout, on devices whose rates are calibrated on one node.

Only what is of the transformer and of the device stands here. The order of the pipeline and its
bubble, the choice of an all-reduce, its bytes and rounds, and the axes that cross nodes are those
of the product.

Source: Korthikanti et al. 2022, arXiv:2205.05198, for the bytes of a layer.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.parallel.mesh import Mesh, crossing_axes
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.orders import Action
from phalanx.parallel.pipeline.timeline import simulate
from phalanx.plan.machine import Cluster, SumTime
from phalanx.plan.sums import LinkSpeed, RankLayout, plan_sum

FOLDER = Path(__file__).parent
NODE = 8
PEAK = 312e12
"""Flops of an A100 in half precision by its data sheet."""
MEMORY_GB = 80
LATENCY_S = 10e-6
VOCABULARY = {"vtrain": 51_200, "bigscience": 250_880}
"""Words of a program's vocabulary, by its files: what its number of parameters leaves."""
NAMES = {
    "# GPUs": "gpus",
    "hidden size": "hidden",
    "attention heads": "heads",
    "# layers": "layers",
    "sequence length": "sequence",
    "tensor parallelism": "tp",
    "data parallelism": "dp",
    "pipeline parallelism": "pp",
    "micro batch": "micro_batch",
    "global batch": "global_batch",
}
"""Columns of vTrain, by those of BigScience."""


class Row(NamedTuple):
    """A layout of a GPT and what an iteration of it took."""

    gpus: int
    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    tp: int
    dp: int
    pp: int
    seconds: float | None
    """None: it did not fit, or hung."""
    memory_gb: float | None
    does_not_fit: bool
    day: str
    vocabulary: int

    @property
    def words(self) -> str:
        return f"tp {self.tp}, dp {self.dp}, pp {self.pp}, micro-batch {self.micro_batch}"

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.sequence

    @property
    def micro_batches(self) -> int:
        return self.global_batch // self.dp // self.micro_batch

    @property
    def parameters(self) -> float:
        """Parameters of a rank."""
        layers = 12 * self.layers * self.hidden**2 / self.pp
        return (layers + self.vocabulary * self.hidden) / self.tp

    @property
    def layer_bytes(self) -> float:
        """Bytes that a layer stores for its backward pass: a part is the same on all ranks of a
        tensor group, a part is split, as are the scores of its attention."""
        split = 24 * self.hidden + 5 * self.heads * self.sequence
        return self.tokens * (10 * self.hidden + split / self.tp)

    @property
    def pipeline(self) -> PipelineLayout:
        return PipelineLayout(
            schedule="1f1b" if self.micro_batches >= self.pp else "gpipe",
            num_ranks=self.pp,
            micro_batches=self.micro_batches,
            stages_per_rank=1,
        )

    def layers_of(self, stage: int) -> float:
        """Return the layers of a stage: as many as of any other or, if they do not divide, with
        embedding and logits counted as a layer each."""
        if self.layers % self.pp == 0:
            return self.layers / self.pp
        return (self.layers + 2) / self.pp - (stage in (0, self.pp - 1))


def read_rows(name: str) -> Iterator[Row]:
    vocabulary = next(words for start, words in VOCABULARY.items() if name.startswith(start))
    with (FOLDER / name).open() as file:
        for line in csv.DictReader(file):
            named = {NAMES.get(key, key): value for key, value in line.items()}
            in_ms, in_s = named.get("iteration time (ms)"), named.get("iteration_s")
            memory = named.get("memory_gb", "")
            yield Row(
                *(int(named[key]) for key in Row._fields[:10]),
                seconds=float(in_ms) / 1e3 if in_ms else float(in_s) if in_s else None,
                memory_gb=float(memory) if memory.replace(".", "").isdecimal() else None,
                does_not_fit=memory == "OOM",
                day=named.get("date", ""),
                vocabulary=vocabulary,
            )


class Work(NamedTuple):
    """A forward pass of a micro-batch, by one rank."""

    flops: float
    moved_bytes: float
    calls: float
    """Layers, each of which launches its kernels."""


def layer_work(row: Row) -> Work:
    """Return the work of a layer; each stored byte is written and read again."""
    products = 24 * row.tokens * row.hidden**2 + 4 * row.tokens * row.sequence * row.hidden
    return Work(products / row.tp, 2 * row.layer_bytes, 1.0)


def logits_work(row: Row) -> Work:
    """Return the work of the logits, of the last stage alone."""
    values = row.tokens * row.vocabulary / row.tp
    return Work(2 * values * row.hidden, 6 * values, 0.0)


def product_size(row: Row) -> float:
    """Return the values of the result of a layer's products, their mean by work: of four, with 3,
    1, 4 and 1 times `hidden` columns, the first and the third split among the tensor group."""
    return 24 * row.tokens * row.hidden / (4 * row.tp + 10)


class Rates(NamedTuple):
    """Rates of a device."""

    peak_share: float
    """Share of `PEAK` that the largest products reach."""
    half_size: float
    """Values of a product's result at which half of that is reached."""
    memory_bytes_per_s: float
    call_s: float
    """Seconds to launch the kernels of a layer, beside those that run."""

    def seconds(self, work: Work, size: float) -> float:
        rate = PEAK * self.peak_share * size / (size + self.half_size)
        busy_s = work.flops / rate + work.moved_bytes / self.memory_bytes_per_s
        return max(busy_s, work.calls * self.call_s)


LEAST, MOST = Rates(0.2, 1e5, 3e11, 1e-5), Rates(0.95, 1e10, 2.04e12, 2e-3)
"""Bounds of what is calibrated: no rate passes the data sheet."""


def predict(
    row: Row, rates: Rates, machine: Cluster, sums: Sequence[SumTime], *, again: bool
) -> float:
    """Return the seconds of an iteration.

    sums: all-reduces in a node of such devices, as measured. again: the forward pass is computed
    again before the backward pass.
    """
    assert machine.network is not None
    whole = LinkSpeed(machine.network.bandwidth_bytes_per_s, LATENCY_S)
    beside = min(NODE, row.tp)  # ranks of a node that are no replicas of each other
    per_node = max(1, min(row.dp, NODE // beside))
    activations = 2 * row.tokens * row.hidden
    tensor_s = _sum_s(activations, RankLayout(row.tp, NODE), sums, whole)
    send_s = _sum_s(activations, RankLayout(2, NODE), sums, whole)  # as much as two ranks exchange
    if "pp" in crossing_axes(Mesh(pp=row.pp, dp=row.dp, tp=row.tp), NODE):
        send_s = LATENCY_S + activations * beside * per_node / whole.bandwidth_bytes_per_s
    size = product_size(row)
    layer_s, logits_s = (rates.seconds(work(row), size) for work in (layer_work, logits_work))
    forward_s = layer_s + 2 * tensor_s
    backward_s = forward_s + layer_s + again * forward_s

    def seconds(action: Action) -> float:
        is_forward, is_last = action.kind == "forward", action.stage == row.pp - 1
        sends = not is_last if is_forward else action.stage > 0
        layers_s = row.layers_of(action.stage) * (forward_s if is_forward else backward_s)
        return layers_s + is_last * logits_s * (1 if is_forward else 2) + sends * send_s

    spans = simulate(row.pipeline, seconds)
    shared = whole._replace(bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s / beside)
    gradients_s = _sum_s(2 * row.parameters, RankLayout(row.dp, per_node), sums, shared)
    update_s = 20 * row.parameters / rates.memory_bytes_per_s
    return max(rank[-1].ended for rank in spans) + gradients_s + update_s


def _sum_s(num_bytes: float, layout: RankLayout, sums: Sequence[SumTime], link: LinkSpeed) -> float:
    if layout.ranks == 1:
        return 0.0
    planned = plan_sum(int(num_bytes) // 4 * 4, 2, layout, sums)
    return planned.seconds(None if layout.on_one_node else link)


def memory_gb(row: Row, *, again: bool) -> float:
    """Return the memory of a rank of the first stage or the last, whichever has more: parameters
    and gradients in half precision, Adam's values in float32 and shared by the replicas."""
    state = row.parameters * (4 + 12 / row.dp)
    layers, in_flight = row.layers / row.pp, min(row.micro_batches, row.pp)
    stored = layers * (2 * row.tokens * row.hidden if again else row.layer_bytes)
    insides, logits = again * row.layer_bytes, 10 * row.tokens * row.vocabulary / row.tp
    return (state + max(in_flight * stored + insides, stored + max(insides, logits))) / 1e9


def is_computed_again(rows: Sequence[Row]) -> bool:
    """Return whether a program whose layouts these are must compute forward passes again, as one of
    them does not fit otherwise."""
    return any(memory_gb(row, again=False) > MEMORY_GB for row in rows)


def calibrate(rows: Sequence[Row], machine: Cluster, sums: Sequence[SumTime]) -> Rates:
    """Return the rates of least mean error, by random search within their bounds.

    rows: without a pipeline, so that an iteration is a sum of terms; they compute nothing again.
    """
    times, no_work = np.array([row.micro_batches for row in rows]), Rates(1e12, 1.0, 1e30, 0.0)
    layers = np.array([row.layers for row in rows])
    sums_s = np.array([predict(row, no_work, machine, sums, again=False) for row in rows])
    stages, logits = (
        times * np.array([work(row) for row in rows]).T for work in (layer_work, logits_work)
    )
    sizes = np.array([product_size(row) for row in rows])
    updated = np.array([20 * row.parameters for row in rows])
    measured = np.array([row.seconds for row in rows])

    def error(point: NDArray[np.float64]) -> float:
        peak, half, memory, call = np.exp(point)
        rate = PEAK * peak * sizes / (sizes + half)
        told = np.maximum(stages[0] / rate + stages[1] / memory, stages[2] * call)
        told = layers * told + logits[0] / rate + logits[1] / memory
        told = 3 * told + updated / memory + sums_s
        return float(np.mean(np.abs(np.log(told / measured))))

    low, high = np.log(LEAST), np.log(MOST)
    found = []
    for seed in range(2):
        generator = np.random.default_rng(seed)
        best = min((low + (high - low) * generator.random(4) for _ in range(300)), key=error)
        least, width = error(best), 0.2
        for _ in range(2000):
            moves = generator.normal(0, width, 4) * (generator.random(4) < 0.5)
            point = np.clip(best + moves * (high - low), low, high)
            if (value := error(point)) < least:
                best, least = point, value
            width = max(0.002, width * 0.998)
        found.append((least, best))
    return Rates(*map(float, np.exp(min(found, key=lambda each: each[0])[1])))
