"""An epoch of the network from scratch on one rank against the same arithmetic in bare NumPy.

    python benchmarks/scratch.py        # a minute

784-128-10 with ReLU, batches of 128, momentum; 16,384 random samples an epoch; one thread. Both
train in this process, epoch by epoch in turn, from the same weights on the same batches, and end
with the same parameters.

    scratch   `phalanx scratch --scheme alone`: its loop, its modules, a record a step
    bare      a loop as one writes it in a notebook: no classes, no records, no losses

Seconds an epoch, median and quartiles; the ratio is of epochs of one round. Raw values, commit and
machine go to benchmarks/results/scratch.json.
"""

from __future__ import annotations

import os

# Read once, when NumPy is imported.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.launch.cores import usable_cores
from phalanx.records.environment import describe_environment
from phalanx.records.files import EventWriter, write_atomically
from phalanx.scratch.batches import epoch_order
from phalanx.scratch.build import build_scheme
from phalanx.scratch.config import NUM_PIXELS, ScratchConfig
from phalanx.scratch.images import Samples
from phalanx.scratch.loop import LoopContext, train_epoch
from phalanx.scratch.network import multilayer
from phalanx.scratch.world import OneProcess

SAMPLES, ROUNDS = 16_384, 20
CONFIG = ScratchConfig(scheme="alone", ranks=1, dataset="digits", lr=0.01)
RESULTS = Path(__file__).parent / "results" / "scratch.json"

Epoch = Callable[[int], NDArray[Any]]  # trains, and returns all parameters


def scratch(rows: NDArray[np.uint8], folder: Path) -> Epoch:
    context = LoopContext(
        scheme=build_scheme(CONFIG, None),
        world=OneProcess(),
        train=Samples(rows, CONFIG.dtype),
        validation=Samples(rows[:1], CONFIG.dtype),
        batch_size=CONFIG.batch_size,
        seed=CONFIG.seed,
        writer=EventWriter(folder / "rank-0.jsonl"),
        began_at=time.perf_counter(),
    )

    def epoch(number: int) -> NDArray[Any]:
        train_epoch(context, number)
        return context.scheme.full_parameters()

    return epoch


def bare(rows: NDArray[np.uint8]) -> Epoch:
    images = rows[:, :-1] * np.float32(1 / 255)
    labels = rows[:, -1].astype(np.intp)
    start = multilayer(CONFIG.sizes, CONFIG.activation, seed=CONFIG.seed, dtype=CONFIG.dtype)
    w1, b1, w2, b2 = (p.value.copy() for m in start.modules for p in m.parameters)
    vw1, vb1, vw2, vb2 = (np.zeros_like(p) for p in (w1, b1, w2, b2))
    lr, momentum = np.float32(CONFIG.lr), np.float32(CONFIG.momentum)

    def epoch(number: int) -> NDArray[Any]:
        nonlocal w1, b1, w2, b2, vw1, vb1, vw2, vb2
        order = epoch_order(len(images), seed=CONFIG.seed, epoch=number)
        for at in range(0, len(order), CONFIG.batch_size):
            batch = order[at : at + CONFIG.batch_size]
            x, y = images[batch], labels[batch]
            h = np.maximum(x @ w1 + b1, np.float32(0))
            z = h @ w2 + b2
            e = np.exp(z - z.max(1, keepdims=True))
            g = e / e.sum(1, keepdims=True)
            g[np.arange(len(y)), y] -= 1
            g /= len(batch)
            gh = (g @ w2.T) * (h > 0)
            vw1 = momentum * vw1 + x.T @ gh
            vb1 = momentum * vb1 + gh.sum(0)
            vw2 = momentum * vw2 + h.T @ g
            vb2 = momentum * vb2 + g.sum(0)
            w1, b1, w2, b2 = w1 - lr * vw1, b1 - lr * vb1, w2 - lr * vw2, b2 - lr * vb2
        return np.concatenate([p.ravel() for p in (w1, b1, w2, b2)])

    return epoch


def measure(ways: dict[str, Epoch]) -> dict[str, list[float]]:
    """Seconds an epoch, one value a round; the first round warms up and shows that they agree."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        parameters = []
        for name, epoch in ways.items():
            began = time.perf_counter()
            parameters.append(epoch(number))
            if number > 0:
                seconds[name].append(time.perf_counter() - began)
        if number == 0:
            one, other = parameters
            assert np.allclose(one, other, atol=1e-4), "they do not train the same network"
    return seconds


def report(seconds: dict[str, list[float]]) -> None:
    ratios = [a / b for a, b in zip(seconds["scratch"], seconds["bare"], strict=True)]
    for name, values in {**seconds, "scratch ÷ bare": ratios}.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:15} {middle:7.3f}  [{low:.3f} {high:.3f}]")


def main() -> None:
    rows = np.random.default_rng(0).integers(256, size=(SAMPLES, NUM_PIXELS + 1), dtype=np.uint8)
    rows[:, -1] %= 10
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure({"scratch": scratch(rows, Path(folder)), "bare": bare(rows)})
    report(seconds)
    document = {
        "command": "python benchmarks/scratch.py",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(None, cores=usable_cores())),
        "samples": SAMPLES,
        "batch_size": CONFIG.batch_size,
        "seconds_of_an_epoch_by_round": seconds,
    }
    write_atomically(RESULTS, json.dumps(document, indent=1).encode())
    print(f"raw times: {RESULTS}")


if __name__ == "__main__":
    main()
