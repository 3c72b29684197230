"""Cost of `phalanx launch --survive` while no rank dies: its steps against those without it.

    python benchmarks/survive.py            # ten minutes on two quiet cores
    python benchmarks/survive.py --quick    # one start
    python benchmarks/survive.py zero       # or shared: each of two ranks then makes all updates

The same program of `phalanx.start`, an MLP of two sizes on two ranks of this node, one thread each,
is launched four times at once:

    plain     the ordinary path
    bitwise   the same with bitwise=True
    again     the same as bitwise: the noise of this comparison
    survive   the same with --survive, which is bitwise

One job at a time makes a block of steps, while the ranks of the other jobs wait for a byte in a
pipe; so they take turns, in another order in each round. A block counts by the slower rank's median
step without the first, by wall clock; and by the CPU time of both ranks for the full block, which
excludes other processes.

A process keeps the physical pages that it got: two starts of the same program differ by up to a
quarter of a step, for as long as they run. So a start counts once, by the median of its rounds, and
there are many starts. Reported: the ratios of the starts, their geometric mean and its 95 %
interval. Raw times, commit and machine go to runs/benchmarks/survive.json, or to
survive-<name>.json for a strategy.
"""

from __future__ import annotations

import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import phalanx
from harness import save
from phalanx.report.statistics import mean_interval
from phalanx.run.strategy import AskedStrategy

RANKS, MICRO_BATCHES, CLASSES = 2, 4, 10
KINDS = ("plain", "bitwise", "again", "survive")
PAIRS = (("again", "bitwise"), ("survive", "bitwise"), ("survive", "plain"), ("bitwise", "plain"))
STARTS, ROUNDS, WARM_UP = 16, 6, 2
START_S, BLOCK_TIMEOUT_S = 120.0, 120.0


class Size(NamedTuple):
    """Sizes of a training whose step takes about as long as its key in `SIZES` says."""

    width: int
    batch: int
    steps: int
    """Steps per block."""


SIZES = {"5 ms": Size(384, 256, 60), "50 ms": Size(1024, 1024, 8)}


class Block(NamedTuple):
    """Consecutive steps of one rank."""

    step_s: list[float]
    processor_s: float


def rank_main(folder: Path, kind: str, size: Size, strategy: AskedStrategy) -> None:
    rank = os.environ["RANK"]
    torch.manual_seed(0)
    layers = [nn.Linear(784, size.width), nn.ReLU(), nn.Linear(size.width, size.width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(size.width, CLASSES))
    samples = 16 * size.batch
    run = phalanx.start(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-3, fused=True),
        (torch.randn(samples, 784), torch.randint(CLASSES, (samples,))),
        batch_size=size.batch,
        micro_batches=MICRO_BATCHES,
        bitwise=kind != "plain",
        strategy=strategy,
        epochs=sys.maxsize,
    )
    begin, end = (folder / f"{what}-{kind}-{rank}" for what in ("begin", "end"))
    with begin.open("rb", buffering=0) as asked, end.open("w") as answer:
        ended: list[float] = []
        for batch in run:
            if not ended:
                if asked.read(1) != b"1":
                    break
                ended, began_s = [time.perf_counter()], time.process_time()
            run.backward(cross_entropy(run.model(batch.inputs), batch.targets))
            if not batch.ends_step:
                continue
            ended.append(time.perf_counter())
            if len(ended) > size.steps:
                steps = [after - before for before, after in pairwise(ended)]
                block = Block(steps, time.process_time() - began_s)
                print(json.dumps(block), file=answer, flush=True)
                ended = []


class LaunchedJob:
    """A launched program, which makes a block of steps on request."""

    def __init__(self, folder: Path, kind: str, size: Size, strategy: str) -> None:
        pipes = [
            folder / f"{what}-{kind}-{rank}" for what in ("begin", "end") for rank in range(RANKS)
        ]
        for pipe in pipes:
            os.mkfifo(pipe)
        # Pipes are opened to read and write: opening neither end waits for the other.
        self._pipes = [os.fdopen(os.open(pipe, os.O_RDWR), "r+b", buffering=0) for pipe in pipes]
        self._log = folder / f"{kind}.log"
        options = ["--threads", "1", "--log-dir", str(folder / kind), "-n", str(RANKS)]
        options += ["--survive"] if kind == "survive" else []
        program = [__file__, "rank", str(folder), kind, json.dumps(size), strategy]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "phalanx", "launch", *options, *program],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def block(self, timeout_s: float = BLOCK_TIMEOUT_S) -> list[Block]:
        """Return the block of each rank."""
        for pipe in self._pipes[:RANKS]:
            pipe.write(b"1")
        return [self._answer(number, timeout_s) for number in range(RANKS, 2 * RANKS)]

    def _answer(self, number: int, timeout_s: float) -> Block:
        text, until_s = b"", time.monotonic() + timeout_s
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._pipes[number]], [], [], 1.0)
            if ready:
                text += os.read(self._pipes[number].fileno(), 1 << 16)
            elif self._process.poll() is not None or time.monotonic() > until_s:
                self.close()
                sys.exit(self._log.read_text())
        return Block(*json.loads(text))

    def close(self) -> None:
        for pipe in self._pipes[:RANKS]:
            pipe.write(b"0")
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        for pipe in self._pipes:
            pipe.close()


Round = dict[str, list[Block]]  # blocks by kind, rank


def measure(size: Size, strategy: str) -> list[Round]:
    """Return the rounds of one start of each kind."""
    with tempfile.TemporaryDirectory() as name:
        jobs = {kind: LaunchedJob(Path(name), kind, size, strategy) for kind in KINDS}
        for _ in range(WARM_UP):
            for job in jobs.values():
                job.block(START_S)
        found = []
        for number in range(ROUNDS):
            shift = number % len(KINDS)
            order = KINDS[shift:] + KINDS[:shift]
            made = {kind: jobs[kind].block() for kind in (order if number % 2 else order[::-1])}
            found.append(made)
        for job in jobs.values():
            job.close()
    return found


def clock_s(blocks: list[Block]) -> float:
    """Return seconds of a step of the slower rank, without the first of the block."""
    return max(statistics.median(block.step_s[1:]) for block in blocks)


def processor_s(blocks: list[Block]) -> float:
    """Return CPU seconds per step, summed over all ranks."""
    return sum(block.processor_s / len(block.step_s) for block in blocks)


def ratio(upper: list[float], lower: list[float]) -> str:
    """Return the geometric mean of the starts' ratios, with its 95 % interval if there are
    several."""
    logarithms = [math.log(above / below) for above, below in zip(upper, lower, strict=True)]
    found = mean_interval(logarithms)
    mean = f"{math.exp(statistics.fmean(logarithms)):.3f}"
    return f"{mean} [{math.exp(found.low):.3f} {math.exp(found.high):.3f}]" if found else mean


def report(name: str, starts: list[list[Round]]) -> None:
    by_kind = {
        kind: [
            [statistics.median(seconds(made[kind]) for made in rounds) for rounds in starts]
            for seconds in (clock_s, processor_s)
        ]
        for kind in KINDS
    }
    medians = [f"{kind} {1e3 * statistics.median(by_kind[kind][0]):.2f}" for kind in KINDS]
    print(f"{name}: ms a step: {', '.join(medians)}; starts: {len(starts)}")
    for upper, lower in PAIRS:
        columns = [ratio(*pair) for pair in zip(by_kind[upper], by_kind[lower], strict=True)]
        print(f"  {upper + ' ÷ ' + lower:18}{columns[0]:24}{columns[1]}", flush=True)


def main(num_starts: int, strategy: str) -> None:
    print(f"steps of {RANKS} ranks ({strategy}); ratios by the clock, and by the processor's time")
    found = {}
    for name, size in SIZES.items():
        found[name] = [measure(size, strategy) for _ in range(num_starts)]
        report(name, found[name])
    if num_starts == 1:
        return
    save(
        "survive.py" if strategy == "mpi" else f"survive-{strategy}.py",
        sizes={name: size._asdict() for name, size in SIZES.items()},
        ranks=RANKS,
        micro_batches=MICRO_BATCHES,
        step_and_processor_seconds_by_start_round_kind_rank=found,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(
            Path(sys.argv[2]),
            sys.argv[3],
            Size(*json.loads(sys.argv[4])),
            cast("AskedStrategy", sys.argv[5]),
        )
    else:
        names = [word for word in sys.argv[1:] if word != "--quick"] or ["mpi"]
        main(1 if "--quick" in sys.argv[1:] else STARTS, *names)
