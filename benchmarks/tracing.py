"""What it costs to time steps, to record and trace them, and to note every collective.

    python benchmarks/tracing.py [--share 0.05]     # whole: about a minute on two cores

On two ranks of one node, one thread each, in turn in one run, so that what else the machine does
hits all alike:

    plain      steps of the strategy, nothing recorded; the parts of a step are timed all the same,
               at some four looks at the clock
    recorded   as in every run: batches, a record for each step
    traced     the same with --trace: a span of every collective and every wait

The model is the MLP with a global batch of 128, under `mpi` and `shared`: the shortest steps that
anybody trains with, for which any cost is the largest part. And of `Group.all_reduce` of four
bytes, the fastest collective there is, with and without the notes that the recorder of the last
collectives keeps.

Reported: the median step, and the median over rounds of the ratio to the one before, with its
quartiles. Raw times, commit and machine go to benchmarks/results/tracing.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from phalanx.comm.buffer import Buffer
from phalanx.comm.world import World
from phalanx.data.dataset import load_dataset
from phalanx.data.in_memory import InMemory
from phalanx.data.source import Loaded
from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job
from phalanx.models.build import build_model
from phalanx.parallel.mpi import MPI
from phalanx.parallel.shared import Shared
from phalanx.parallel.strategy import Strategy
from phalanx.records.files import EventWriter, rank_file, write_atomically
from phalanx.records.spans import Spans
from phalanx.train.config import TrainConfig
from phalanx.train.environment import describe_environment
from phalanx.train.loop import Work, batch_of, update
from phalanx.train.memory import keep_freed_memory
from phalanx.train.optimizer import update_rule
from phalanx.train.schedule import Schedule

BATCH, BLOCK_STEPS, ROUNDS = 128, 25, 120
CALLS, CALL_ROUNDS = 500, 400
RESULTS = Path(__file__).parent / "results" / "tracing.json"
Times = dict[str, list[float]]
MODES = ("plain", "recorded", "traced")


def work_of(strategy: Strategy, folder: Path) -> Work:
    config = TrainConfig(model="mlp")
    strategy.prepare(build_model("mlp", seed=0), update_rule(config, config.lr))
    return Work(
        strategy=strategy,
        schedule=Schedule(kind="constant", peak=config.lr, num_steps=1),
        source=InMemory(load_dataset("digits")),
        global_batch_size=BATCH,
        seed=0,
        writer=EventWriter(rank_file(folder, strategy.rank)),
        began_at=time.perf_counter(),
    )


def batches_of(work: Work) -> Iterator[Loaded]:
    strategy, epoch = work.strategy, 0
    while True:
        yield from work.source.train_batches(
            seed=0,
            epoch=epoch,
            global_batch_size=BATCH,
            rank=strategy.data_rank,
            num_ranks=strategy.data_size,
            first_sample=0,
        )
        epoch += 1


def step_times(strategy: Strategy, folder: Path, rounds: int) -> Times:
    """Seconds of a step in each block, by mode."""
    work, spans = work_of(strategy, folder), Spans()
    batches, times = batches_of(work), {mode: [] for mode in MODES}

    def plain(step: int) -> None:
        strategy.step(batch_of(work, next(batches), step))

    def recorded(step: int) -> None:
        event, _, _ = update(work, next(batches), 0, step, time.perf_counter())
        work.writer.add(event)

    for number in range(rounds + 1):
        for place in range(len(MODES)):
            mode = MODES[(number + place) % len(MODES)]
            strategy.trace(spans if mode == "traced" else None)
            took_s = block(strategy, plain if mode == "plain" else recorded)
            if number:  # the first round warms up
                times[mode].append(took_s)
    strategy.trace(None)
    work.writer.close()
    return times


def block(strategy: Strategy, step: Callable[[int], None]) -> float:
    """Seconds of the median step; ranks begin together."""
    strategy.barrier()
    ends = [time.perf_counter()]
    for number in range(BLOCK_STEPS):
        step(number)
        ends.append(time.perf_counter())
    return statistics.median(b - a for a, b in itertools.pairwise(ends))


def call_times(world: World, rounds: int) -> Times:
    """Seconds of an all-reduce of four bytes, without and with notes."""
    group, buffer = world.group, Buffer.of(np.zeros(1, np.float32))
    node, times = group.node, {"unnoted": [], "noted": []}
    assert node is not None, "two ranks of one node"
    for number in range(2 * rounds):
        name = "noted" if number % 2 else "unnoted"
        node.keep_notes(name == "noted")
        group.barrier()
        began = time.perf_counter()
        for _ in range(CALLS):
            group.all_reduce(buffer)
        times[name].append((time.perf_counter() - began) / CALLS)
    node.keep_notes(True)
    return times


def rank_main(folder: Path, share: float) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    world = World.create(timeout_s=120)
    rounds = max(2, round(share * ROUNDS))
    times = {
        "all_reduce of 4 bytes": call_times(world, max(2, round(share * CALL_ROUNDS))),
        "mpi": step_times(MPI(world), folder / "mpi", rounds),
        "shared": step_times(Shared(world), folder / "shared", rounds),
    }
    if world.rank == 0:
        (folder / "times.json").write_text(json.dumps(times))
    world.barrier()


def report(times: dict[str, Times]) -> None:
    for what, modes in times.items():
        names = list(modes)
        for before, mode in zip([None, *names], names, strict=False):
            text = f"{what:22} {mode:9} {1e6 * statistics.median(modes[mode]):10.3f} µs"
            if before is not None:
                ratios = [a / b for a, b in zip(modes[mode], modes[before], strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                text += f"   {middle:.4f} [{low:.4f} {high:.4f}] of {before}"
            print(text)


def main(share: float) -> None:
    mpi = find_mpi(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [sys.executable, __file__, "rank", str(folder), str(share)]
        command = mpi_job(mpi, 2, words, cores=usable_cores(), environ=os.environ)
        with Job.start([command], folder / "log") as job:
            if job.wait(600):
                sys.exit((folder / "log").read_text())
        times = json.loads((folder / "times.json").read_text())
    report(times)
    if share < 1:
        print("too short to be kept")
        return
    document: dict[str, Any] = {
        "command": "python benchmarks/tracing.py",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(str(mpi))),
        "seconds_by_round": times,
    }
    write_atomically(RESULTS, json.dumps(document, indent=1).encode())
    print(f"raw times: {RESULTS}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]), float(sys.argv[3]))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--share", type=float, default=1.0, help="of the rounds, to try it")
        main(parser.parse_args().share)
