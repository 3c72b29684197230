"""Phalanx's training against a bare PyTorch loop over the same batches, in turn, in one run.

    python benchmarks/training.py [MODEL ...]     # all three: about four minutes on two cores

Two ranks of one node run it in rounds, with one thread each. A round runs one epoch of each cell
and counts its median step, which a hiccup of a shared machine does not move:

    bare        PyTorch alone on rank 0: cross entropy, backward, fused Adam; no Phalanx
    bare half   the same with half the batch: a step of two perfect ranks
    half both   the same on both ranks at once, which share cache and memory but nothing else
    free barrier  from these: every step as long as the slower rank's, which ranks in lockstep
                would reach if communication took no time
    sequential  `phalanx.start` and `run.step`, all measuring and recording included, on rank 0
    unrecorded  the same without records
    traced      the same with a trace, too
    mpi, shared           two ranks, the same global batch
    ddp mpi, ddp gloo     the bare loop in stock DistributedDataParallel, on either backend

Reported with the spread over the rounds: the overhead, sequential ÷ bare, and the records' part in
it; the speed-up of two ranks over `bare`; and its share of the model's limit, bare ÷ bare half.
Raw times, commit and machine go to runs/benchmarks/training.json.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import phalanx
from harness import quartiles, run_ranks, save
from phalanx.comm.world import World
from phalanx.data.datasets.dataset import Dataset, load_dataset
from phalanx.data.sampler import epoch_order
from phalanx.models.build import build_model
from phalanx.models.options import ModelName
from phalanx.parallel.gloo import GlooGroup
from phalanx.run.memory import keep_freed_memory

BATCH = 128
SAMPLES: dict[ModelName, int] = {"mlp": 60_000, "cnn": 6_400, "rnn": 12_800}
ROUNDS = 9
Epoch = Callable[[], list[float]]  # runs one; returns seconds of each step


def bare_loop(
    name: ModelName,
    data: Dataset,
    samples: int,
    batch_size: int,
    steps: int,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Epoch:
    """Return an epoch as a PyTorch user writes it by hand, with always `steps` updates."""
    model = wrap(build_model(name, seed=0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def epoch() -> list[float]:
        ends = [time.perf_counter()]
        order = epoch_order(samples, 0, 0)
        for step in range(steps):
            indices = order[step * batch_size : (step + 1) * batch_size]
            images, labels = data.train_inputs[indices], data.train_targets[indices]
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            ends.append(time.perf_counter())
        return [end - begin for begin, end in itertools.pairwise(ends)]

    return epoch


def phalanx_loop(
    name: ModelName, data: Dataset, folder: Path, *, trace: bool = False, **options: Any
) -> Epoch:
    """Return a run of one epoch, which records to disk unless `recorded` is False."""
    numbers = itertools.count()

    def epoch() -> list[float]:
        model = build_model(name, seed=0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        run_dir = folder / str(next(numbers)) if options.get("recorded", True) else None
        run = phalanx.start(
            model,
            optimizer,
            (data.train_inputs, data.train_targets),
            batch_size=BATCH,
            run_dir=run_dir,
            records=phalanx.Records(trace=trace, counts_correct=True),
            **{key: value for key, value in options.items() if key != "recorded"},
        )
        ends = [time.perf_counter()]
        for batch in run:
            run.step(batch, F.cross_entropy)
            ends.append(time.perf_counter())
        run.close()
        return [end - begin for begin, end in itertools.pairwise(ends)]

    return epoch


@dataclass(frozen=True)
class Cell:
    """A program to time. alone: on rank 0 while rank 1 sleeps."""

    name: str
    alone: bool
    epoch: Epoch


def timed(cell: Cell, rank: int) -> dict[str, float]:
    """Return seconds of the median step of an epoch on this rank, by name; idle ranks sleep."""
    from mpi4py.MPI import COMM_WORLD  # only ranks: importing it initialises MPI

    quiet_barrier()
    steps = cell.epoch() if rank == 0 or not cell.alone else [0.0]
    quiet_barrier()
    medians = {cell.name: statistics.median(steps)}
    if cell.name == "half both":
        ranks = zip(*COMM_WORLD.allgather(steps), strict=True)
        medians["free barrier"] = statistics.median(map(max, ranks))
    return medians


def quiet_barrier() -> None:
    """Wait at a barrier that leaves the core to the rank that is being timed."""
    from mpi4py.MPI import COMM_WORLD

    request = COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def measure(
    name: ModelName,
    world: World,
    groups: dict[str, dist.ProcessGroup | None],
    folder: Path,
) -> dict[str, list[float]]:
    """Return seconds per step, by cell, one value per round."""
    from mpi4py.MPI import COMM_SELF

    samples = SAMPLES[name]
    data = load_dataset("auto", train_samples=samples)
    steps = samples // BATCH
    whole = {key: getattr(data, key)[: steps * BATCH] for key in ("train_inputs", "train_targets")}
    data = Dataset(**{**vars(data), **whole})
    loop = partial(phalanx_loop, name, data)
    cells = [
        Cell("bare", True, bare_loop(name, data, steps * BATCH, BATCH, steps)),
        Cell("bare half", True, bare_loop(name, data, steps * BATCH, BATCH // 2, steps)),
        Cell("half both", False, bare_loop(name, data, steps * BATCH, BATCH // 2, steps)),
        Cell("sequential", True, loop(folder / "sequential", comm=COMM_SELF)),
        Cell("unrecorded", True, loop(folder, comm=COMM_SELF, recorded=False)),
        Cell("traced", True, loop(folder / "traced", comm=COMM_SELF, trace=True)),
        Cell("mpi", False, loop(folder / "mpi", strategy="mpi")),
        Cell("shared", False, loop(folder / "shared", strategy="shared")),
        *(
            Cell(
                label,
                False,
                bare_loop(
                    name,
                    data,
                    steps * BATCH,
                    BATCH // 2,
                    steps,
                    wrap=partial(DistributedDataParallel, process_group=group),
                ),
            )
            for label, group in groups.items()
        ),
    ]
    times: dict[str, list[float]] = {}
    for round_number in range(ROUNDS + 1):
        for cell in cells:
            medians = timed(cell, world.rank)
            if round_number > 0:  # the first round warms up
                for label, step_time_s in medians.items():
                    times.setdefault(label, []).append(step_time_s)
    return times


def rank_main(folder: Path, models: list[ModelName]) -> None:
    torch.set_num_threads(1)

    keep_freed_memory()  # the bare loop gains by it too
    world = World.create(timeout_s=600)
    store = dist.FileStore(str(folder / "meeting"), world.size)
    group = GlooGroup(
        rank=world.rank, size=world.size, local_rank=world.rank, store=store, timeout_s=600
    )
    groups = {"ddp mpi": dist.new_group(backend="mpi"), "ddp gloo": None}
    for name in models:
        times = measure(name, world, groups, folder / name)
        if world.rank == 0:
            (folder / f"{name}.json").write_text(json.dumps(times))
    world.barrier()
    group.close()


def report(times: dict[ModelName, dict[str, list[float]]]) -> None:
    """Print the table: each ratio is of values of one round, then the median over rounds."""

    def ratio(name: ModelName, above: str, below: str) -> str:
        values = [a / b for a, b in zip(times[name][above], times[name][below], strict=True)]
        return quartiles(values)

    print("median [quartiles] over", ROUNDS, "rounds")
    for title, above, below in (
        ("sequential ÷ bare", "sequential", "bare"),
        ("sequential ÷ unrecorded", "sequential", "unrecorded"),
        ("traced ÷ sequential", "traced", "sequential"),
        ("limit: bare ÷ bare half", "bare", "bare half"),
        ("speed-up mpi 2", "bare", "mpi"),
        ("speed-up shared 2", "bare", "shared"),
        ("speed-up ddp gloo 2", "bare", "ddp gloo"),
        ("mpi's share of the limit", "bare half", "mpi"),
        ("a free barrier's share", "bare half", "free barrier"),
        ("mpi against free barrier", "free barrier", "mpi"),
        ("shared's share of limit", "bare half", "shared"),
        ("mpi against ddp gloo", "ddp gloo", "mpi"),
        ("ddp: mpi against gloo", "ddp gloo", "ddp mpi"),
    ):
        cells = "  ".join(f"{name} {ratio(name, above, below)}" for name in times)
        print(f"{title:25} {cells}")
    for name, ways in times.items():
        medians = "  ".join(f"{k} {statistics.median(v) * 1e3:.3f}" for k, v in ways.items())
        print(f"ms a step, {name}: {medians}")


def main(models: list[ModelName]) -> None:
    found = run_ranks(__file__, 2, *models)
    times = {model: found[model] for model in models}
    report(times)
    save(
        __file__,
        seconds_of_the_median_step_by_round=times,
    )


def chosen(words: list[str]) -> list[ModelName]:
    return [model for model in SAMPLES if model in words]


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]), chosen(sys.argv[3:]))
    else:
        main(chosen(sys.argv[1:]) or list(SAMPLES))
