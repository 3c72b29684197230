"""What it costs to time steps, and to record and trace them.

    python benchmarks/tracing.py [--seconds 50]     # of steps, for each of two strategies

On two ranks of one node, one thread each, in blocks of five steps, mixed by chance in one run,
so that what else the machine does hits all alike:

    plain      the steps of a strategy: batch, learning rate, forward, backward, the others, update,
               right predictions counted; nothing looks at the clock
    timed      with the looks at the clock that tell the parts of a step
    recorded   the loop of every run, which leaves a record of each step
    traced     the same with --trace: a span of every collective and every wait

The model is the MLP with a global batch of 128, under `mpi` and `shared`: the shortest steps that
anybody trains with, for which any cost is the largest part.

A round is a block of each mode, in an order by chance. Reported: the median over the rounds of the
ratio of a mode's steps to another's, with its 95 % interval (bootstrap over the rounds). Beside it,
since it tells little where others use the cores: how much more processor time rank 0 takes beside
the strategy's own, which is what keeping and recording cost but for the looks at the clock and the
spans within a step. Records are made and written twice a second, which no median shows: that is
added up, as processor time a step. Commit, machine and medians of some rounds in a row go to
runs/benchmarks/tracing.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from harness import run_ranks, save
from phalanx.comm.world import World
from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.sources.in_memory import InMemorySource
from phalanx.data.sources.source import LoadedBatch
from phalanx.models.build import build_model
from phalanx.parallel.mpi import MPI
from phalanx.parallel.shared import FusedOptimizer, Shared
from phalanx.parallel.step import Batch, backward
from phalanx.parallel.strategy import Strategy
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.spans import SpanRecorder
from phalanx.run.batch import MicroBatch
from phalanx.run.memory import keep_freed_memory
from phalanx.train.accuracy import CorrectCounter
from phalanx.train.config import TrainConfig
from phalanx.train.loop import Training, TrainingContext, batch_of
from phalanx.train.optimizer import update_rule
from phalanx.train.schedule import LRSchedule

MODES = ("plain", "timed", "recorded", "traced")
BATCH = 128
STEPS = 5
"""Of a block, timed."""
LEAST_ROUNDS = 20
Times = dict[str, list[float]]
"""Seconds by mode, one of each round."""
Result = TypeVar("Result")


class BareMPI(MPI):
    def bare_step(self, batch: Batch) -> Tensor:
        """A step that nobody times; the logits."""
        self.clear_gradients()
        logits: Tensor
        logits, loss = self.forward(batch)
        with self.reducer:
            backward(loss, self.loss_weight(batch))
        if self.clip_factor() is not None:
            self.optimizer.step()
        loss.item()
        return logits.detach()


class BareShared(Shared):
    def bare_step(self, batch: Batch) -> Tensor:
        """A step that nobody times; the logits."""
        self.clear_gradients()
        logits: Tensor
        logits, loss = self.forward(batch)
        backward(loss, self.loss_weight(batch))
        assert isinstance(self.optimizer, FusedOptimizer), "prepared"
        if not self.optimizer.apply():
            self.reject_gradients(batch, loss.item())
        loss.item()
        return logits.detach()


class Measured(TypedDict):
    """Of a strategy's steps."""

    step: Times
    beside: Times
    """Processor time beside the strategy's own."""
    later: float
    """Seconds to make a record and write it."""


class CountingWriter(EventWriter):
    """Adds up what it takes to make records and write them."""

    written_s, lines = 0.0, 0

    def flush(self) -> None:
        self.lines += len(self._waiting)
        began = time.thread_time()
        super().flush()
        self.written_s += time.thread_time() - began


def work_of(strategy: Strategy, folder: Path) -> TrainingContext:
    config = TrainConfig.from_options(model="mlp")
    strategy.prepare(build_model("mlp", seed=0), update_rule(config, config.lr))
    return TrainingContext(
        strategy=strategy,
        schedule=LRSchedule(kind="constant", peak=config.lr, num_steps=1),
        source=InMemorySource(load_dataset("digits")),
        global_batch_size=BATCH,
        seed=0,
        writer=CountingWriter(rank_file(folder, strategy.rank)),
        began_at=time.perf_counter(),
    )


def set_learning_rate(work: TrainingContext, step: int) -> None:
    """Set the learning rate of update number `step`, as the training loop does."""
    rate = work.schedule.at(step)
    for group in work.strategy.optimizer.param_groups:
        group["lr"] = rate


class Block(NamedTuple):
    """A mean step of some in a row."""

    step_s: float
    beside_s: float
    """Processor time that is not the strategy's: batch, learning rate, counting, recording."""


class Bench:
    """Blocks of steps of one strategy, in any mode."""

    num_samples: int | None = None
    num_damaged = 0

    def __init__(self, strategy: BareMPI | BareShared, folder: Path) -> None:
        self.work = work_of(strategy, folder)
        self._strategy, self._spans, self._hits = strategy, SpanRecorder(), CorrectCounter()
        self._all_batches = self._batches()
        self._blocks: Iterator[LoadedBatch] = iter(())
        self._training = Training(self.work, self)
        self._began, self._used_s, self._within_s = 0.0, 0.0, 0.0
        self._run = {
            "plain": self._plain,
            "timed": self._timed,
            "recorded": self._recorded,
            "traced": self._recorded,
        }
        for name in ("step", "bare_step"):
            setattr(strategy, name, self._watched(getattr(strategy, name)))

    def _watched(self, step: Callable[[Batch], Result]) -> Callable[[Batch], Result]:
        clock = time.thread_time

        def watched(batch: Batch) -> Result:
            began = clock()
            result = step(batch)
            self._within_s += clock() - began
            return result

        return watched

    def block(self, mode: str) -> Block:
        """One more step comes first, whose caches another mode has filled."""
        self._strategy.group.trace(self._spans if mode == "traced" else None)
        self._run[mode](self._of_a_block())
        return self._block

    def _of_a_block(self) -> Iterator[LoadedBatch]:
        yield next(self._all_batches)
        self._within_s, self._used_s = 0.0, time.thread_time()
        self._began = time.perf_counter()
        for _ in range(STEPS):
            yield next(self._all_batches)
        ended, used_s = time.perf_counter(), time.thread_time()
        beside_s = used_s - self._used_s - self._within_s
        self._block = Block((ended - self._began) / STEPS, beside_s / STEPS)

    def micro_batches(
        self,
        epoch: int,
        *,
        seen: int,  # noqa: ARG002
        step: int,
        max_steps: int,  # noqa: ARG002
    ) -> Iterator[MicroBatch]:
        """Yield the batches of a block, as a feed of the training loop."""
        for number, loaded in enumerate(self._blocks, step):
            batch = batch_of(self.work, loaded, number)
            yield MicroBatch(
                batch,
                BATCH,
                epoch,
                number,
                0,
                ends_step=True,
                end=False,
                global_samples=BATCH,
            )

    def _plain(self, batches: Iterator[LoadedBatch]) -> None:
        work, strategy, hits = self.work, self._strategy, self._hits
        for step, loaded in enumerate(batches):
            batch = batch_of(work, loaded, step)
            set_learning_rate(work, step)
            hits.add(strategy.bare_step(batch), loaded.targets)

    def _timed(self, batches: Iterator[LoadedBatch]) -> None:
        work, strategy, hits = self.work, self._strategy, self._hits
        clock = time.perf_counter
        for step, loaded in enumerate(batches):
            batch = batch_of(work, loaded, step)
            clock()
            set_learning_rate(work, step)
            result = strategy.step(batch)
            clock()
            assert result.logits is not None
            hits.add(result.logits, loaded.targets)

    def _recorded(self, batches: Iterator[LoadedBatch]) -> None:
        self._blocks = batches
        self._training.train_epoch()

    def _batches(self) -> Iterator[LoadedBatch]:
        """Whole ones, without end."""
        for epoch in itertools.count():
            for loaded in self.work.source.train_batches(
                seed=0,
                epoch=epoch,
                global_batch_size=BATCH,
                rank=self._strategy.data_rank,
                num_ranks=self._strategy.data_size,
                first_sample=0,
            ):
                if loaded.global_size == BATCH:
                    yield loaded


def step_times(strategy: BareMPI | BareShared, folder: Path, seconds: float) -> Measured:
    """Blocks of all modes in turn, in another order each round, the same on all ranks."""
    bench, ends_at = Bench(strategy, folder), time.perf_counter() + seconds
    step_s: Times = {mode: [] for mode in MODES}
    beside_s: Times = {mode: [] for mode in MODES}
    for number in itertools.count():
        for mode in random.Random(number).sample(MODES, len(MODES)):
            block = bench.block(mode)
            if number:  # the first round warms up
                step_s[mode].append(block.step_s)
                beside_s[mode].append(block.beside_s)
        goes_on = number < LEAST_ROUNDS or time.perf_counter() < ends_at
        if not strategy.group.share("yes" if goes_on else ""):
            break
    strategy.group.trace(None)
    writer = bench.work.writer
    assert isinstance(writer, CountingWriter)
    writer.close()
    return {"step": step_s, "beside": beside_s, "later": writer.written_s / writer.lines}


def rank_main(folder: Path, seconds: float) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    world = World.create(timeout_s=120)
    measured = {
        "mpi": step_times(BareMPI(world), folder / "mpi", seconds),
        "shared": step_times(BareShared(world), folder / "shared", seconds),
    }
    if world.rank == 0:
        (folder / "measured.json").write_text(json.dumps(measured))
    world.barrier()


SECONDS = 50.0
RESAMPLES, KEPT_ROUNDS = 2000, 50
PAIRS = [
    ("timed", "plain"),
    ("recorded", "timed"),
    ("recorded", "plain"),
    ("traced", "recorded"),
    ("traced", "plain"),
]


def interval(values: Sequence[float]) -> list[float]:
    """The median, between the ends of its 95 % interval."""
    array = np.array(values)
    generator = np.random.default_rng(0)
    medians = [np.median(generator.choice(array, len(array))) for _ in range(RESAMPLES)]
    low, high = np.quantile(medians, [0.025, 0.975])
    return [float(low), float(np.median(array)), float(high)]


def ratio(times: Times, mode: str, other: str) -> list[float]:
    return interval([a / b for a, b in zip(times[mode], times[other], strict=True)])


def difference(times: Times, mode: str, other: str) -> list[float]:
    return interval([a - b for a, b in zip(times[mode], times[other], strict=True)])


def report_steps(strategy: str, measured: Measured) -> dict[str, Any]:
    step_s, beside_s = measured["step"], measured["beside"]
    plain_s = statistics.median(step_s["plain"])
    print(f"{strategy}: {1e3 * plain_s:.3f} ms a plain step, {len(step_s['plain'])} rounds")
    ratios, differences = {}, {}
    for mode, other in PAIRS:
        pair = f"{mode} of {other}"
        low, middle, high = ratios[pair] = ratio(step_s, mode, other)
        text = f"  {pair:20} {middle:.4f} [{low:.4f} {high:.4f}]"
        low, middle, high = (1e6 * x for x in difference(beside_s, mode, other))
        differences[pair] = [low, middle, high]
        print(f"{text}   beside the steps {middle:+6.2f} µs [{low:+.2f} {high:+.2f}] of processor")
    later_s = measured["later"]
    print(f"  written later        {1e6 * later_s:.2f} µs a step, {later_s / plain_s:.2%} of plain")
    return {"ratios": ratios, "beside_us": differences, "written_later_us": 1e6 * later_s}


def thinned(times: Times) -> Times:
    """Medians of so many rounds in a row that few are left."""
    number = -(-len(next(iter(times.values()))) // KEPT_ROUNDS)
    return {
        mode: [
            float(f"{statistics.median(values[start : start + number]):.4g}")
            for start in range(0, len(values), number)
        ]
        for mode, values in times.items()
    }


def main(seconds: float) -> None:
    measured = run_ranks(__file__, 2, str(seconds), timeout_s=600)["measured"]
    found = {name: report_steps(name, measured[name]) for name in ("mpi", "shared")}
    if seconds < SECONDS:
        print("too short to be kept")
        return
    save(
        __file__,
        found=found,
        seconds_by_round={
            "mpi": thinned(measured["mpi"]["step"]),
            "shared": thinned(measured["shared"]["step"]),
        },
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]), float(sys.argv[3]))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each strategy")
    main(parser.parse_args().seconds)
