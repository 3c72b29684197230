"""The two ranks of `tracing.py`: blocks of steps in every mode, and calls with notes and without.

mpirun -n 2 python benchmarks/tracing_ranks.py FOLDER SECONDS     # leaves measured.json there
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from phalanx.comm.buffer import Buffer
from phalanx.comm.world import World
from phalanx.data.datasets.dataset import load_dataset
from phalanx.data.sources.in_memory import InMemorySource
from phalanx.data.sources.source import LoadedBatch
from phalanx.models.build import build_model
from phalanx.parallel.mpi import MPI
from phalanx.parallel.shared import Shared
from phalanx.parallel.step import Batch, backward
from phalanx.parallel.strategy import Strategy
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.spans import SpanRecorder
from phalanx.train.config import TrainConfig
from phalanx.train.loop import EpochCounts, TrainingContext, batch_of, make_steps, set_learning_rate
from phalanx.train.memory import keep_freed_memory
from phalanx.train.optimizer import update_rule
from phalanx.train.schedule import LRSchedule

MODES = ("plain", "timed", "recorded", "traced")
BATCH = 128
STEPS = 5
"""Of a block, timed."""
LEAST_ROUNDS = 20
CALLS, CALL_ROUNDS = 500, 400
Times = dict[str, list[float]]
"""Seconds by mode, one of each round."""
Result = TypeVar("Result")


class BareMPI(MPI):
    def bare_step(self, batch: Batch) -> Tensor:
        """A step that nobody times; the logits."""
        self.clear_gradients()
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
        logits, loss = self.forward(batch)
        backward(loss, self.loss_weight(batch))
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


class Block(NamedTuple):
    """A mean step of some in a row."""

    step_s: float
    beside_s: float
    """Processor time that is not the strategy's: batch, learning rate, counting, recording."""


class Bench:
    """Blocks of steps of one strategy, in any mode."""

    def __init__(self, strategy: BareMPI | BareShared, folder: Path) -> None:
        self.work = work_of(strategy, folder)
        self._strategy, self._spans, self._trained = strategy, SpanRecorder(), EpochCounts()
        self._all_batches = self._batches()
        self._began, self._used_s, self._within_s = 0.0, 0.0, 0.0
        self._run = {
            "plain": self._plain,
            "timed": self._timed,
            "recorded": self._recorded,
            "traced": self._recorded,
        }
        strategy.step = self._watched(strategy.step)  # type: ignore[method-assign]
        strategy.bare_step = self._watched(strategy.bare_step)  # type: ignore[method-assign]

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
        ended, used_s = time.perf_counter(), time.thread_time()
        beside_s = used_s - self._used_s - self._within_s
        return Block((ended - self._began) / STEPS, beside_s / STEPS)

    def _of_a_block(self) -> Iterator[LoadedBatch]:
        yield next(self._all_batches)
        self._within_s, self._used_s = 0.0, time.thread_time()
        self._began = time.perf_counter()
        for _ in range(STEPS):
            yield next(self._all_batches)

    def _plain(self, batches: Iterator[LoadedBatch]) -> None:
        work, strategy, hits = self.work, self._strategy, self._trained.correct
        for step, loaded in enumerate(batches):
            batch = batch_of(work, loaded, step)
            set_learning_rate(work, step)
            hits.add(strategy.bare_step(batch), loaded.targets)

    def _timed(self, batches: Iterator[LoadedBatch]) -> None:
        work, strategy, hits = self.work, self._strategy, self._trained.correct
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
        first = self.work.measured_step + 1  # memory is not measured again and again
        make_steps(self.work, batches, 0, range(first, first + STEPS + 1), self._trained)

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
    step_s, beside_s = {mode: [] for mode in MODES}, {mode: [] for mode in MODES}
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


def call_times(world: World, rounds: int) -> Times:
    """Seconds of an all-reduce of four bytes, without and with notes."""
    group, buffer = world.group, Buffer.of(np.zeros(1, np.float32))
    node, times = group.shm, {"unnoted": [], "noted": []}
    assert node is not None, "two ranks of one node"
    for number in range(2 * rounds):
        name = "noted" if number % 2 else "unnoted"
        node.log_calls(name == "noted")
        group.barrier()
        began = time.perf_counter()
        for _ in range(CALLS):
            group.all_reduce(buffer)
        times[name].append((time.perf_counter() - began) / CALLS)
    node.log_calls(True)
    return times


def rank_main(folder: Path, seconds: float) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    world = World.create(timeout_s=120)
    measured = {
        "calls": call_times(world, CALL_ROUNDS),
        "mpi": step_times(BareMPI(world), folder / "mpi", seconds),
        "shared": step_times(BareShared(world), folder / "shared", seconds),
    }
    if world.rank == 0:
        (folder / "measured.json").write_text(json.dumps(measured))
    world.barrier()


if __name__ == "__main__":
    rank_main(Path(sys.argv[1]), float(sys.argv[2]))
