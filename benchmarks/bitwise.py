"""Cost of `bitwise=True`: its steps against those of the ordinary path, on two ranks of one node.

    python benchmarks/bitwise.py            # some minutes on two quiet cores
    python benchmarks/bitwise.py --quick    # few rounds

Both compute the same micro-batches, V = 2, 4 and 8 per global batch on two ranks, and update with
the same optimizer. `mpi` lets PyTorch add up a rank's gradients and sums them over the ranks as one
flat vector; `bitwise` sums them in the order of a tree that does not depend on the ranks, under
PyTorch's deterministic algorithms. The two take turns in one run, on the same ranks of one thread
each. A step includes what the loop of `phalanx.start` does in it; the slower rank's time counts.

Reported: the ratio bitwise ÷ mpi of each pair of steps, by wall clock and by CPU time (which
excludes other processes and includes waits that spin), median and quartiles. Raw times, commit and
machine go to runs/benchmarks/bitwise.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from harness import quartiles, run_ranks, save
from phalanx.comm.layout import share_of
from phalanx.comm.world import World
from phalanx.gradients.make_reducer import AllReduce, FixedTree
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.world_group import WorldGroup
from phalanx.run.batch import MicroBatch
from phalanx.run.gradients import StepGradients
from phalanx.run.memory import keep_freed_memory

RANKS, CLASSES = 2, 10
MICRO_BATCHES = (2, 4, 8)
WARM_UP, ROUNDS, QUICK_ROUNDS = 4, 100, 10
BATCH = {"mlp": 256, "cnn": 64}
KINDS = ("mpi", "bitwise")


class StepTime(NamedTuple):
    """Seconds of a step."""

    clock_s: float
    processor_s: float


def made(name: str) -> nn.Module:
    """Return the MLP, of 1.9 million parameters, or the CNN, of 2.5 million."""
    if name == "mlp":
        hidden = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(1024, CLASSES))
    layers: list[nn.Module] = []
    channels = 1
    for width in (32, 64, 128):
        convolution = nn.Conv2d(channels, width, 3, padding=1)
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    head = [nn.Flatten(), nn.Linear(9 * channels, 1920), nn.ReLU(), nn.Linear(1920, CLASSES)]
    return nn.Sequential(*layers, *head)


class Training:
    """One model, trained by one strategy on the same micro-batches in every step."""

    def __init__(self, kind: str, name: str, num_micro_batches: int) -> None:
        """Collective."""
        self._is_bitwise = kind == "bitwise"
        world = World.create(timeout_s=60)
        tree = FixedTree(micro_batches=num_micro_batches)
        summation = tree if self._is_bitwise else AllReduce()
        self._strategy = Replicas(WorldGroup(world), summation=summation)
        torch.manual_seed(0)
        model, samples = made(name), BATCH[name]
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        self._strategy.prepare(model, optimizer)
        self._gradients = StepGradients(self._strategy, {"": optimizer}, seed=0)
        own = share_of(world.rank, world.size, num_micro_batches)
        each = samples // num_micro_batches
        self._batches = [
            MicroBatch(
                (torch.randn(each, 1, 28, 28), torch.randint(CLASSES, (each,))),
                num_samples=each,
                epoch=0,
                step=0,
                number=number,
                ends_step=number == own[-1],
                end=False,
                global_samples=samples,
            )
            for number in own
        ]

    def timed_step(self) -> StepTime:
        """Make a step, which begins when all ranks have arrived."""
        torch.use_deterministic_algorithms(self._is_bitwise)
        gradients, model = self._gradients, self._strategy.module
        self._strategy.group.barrier()
        began = time.perf_counter(), time.process_time()
        gradients.begin_step(self._batches[0])
        for batch in self._batches:
            gradients.begin(batch)
            gradients.add(batch, cross_entropy(model(batch.inputs), batch.targets), None, None)
        gradients.apply(self._batches[-1])
        return StepTime(time.perf_counter() - began[0], time.process_time() - began[1])

    def close(self) -> None:
        self._gradients.release()
        self._strategy.close()


def rank_main(out: Path, rounds: int) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    found: dict[str, list[dict[str, StepTime]]] = {}
    for name in BATCH:
        for num_micro_batches in MICRO_BATCHES:
            trainings = {kind: Training(kind, name, num_micro_batches) for kind in KINDS}
            times = []
            for number in range(WARM_UP + rounds):
                order = KINDS if number % 2 else KINDS[::-1]
                times.append({kind: trainings[kind].timed_step() for kind in order})
            found[f"{name} {num_micro_batches}"] = times[WARM_UP:]
            for training in trainings.values():
                training.close()
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found))


def slower(ranks: list[dict[str, list[Any]]]) -> dict[str, list[dict[str, StepTime]]]:
    """Return the steps with each time of the slower rank."""
    return {
        cell: [
            {
                kind: StepTime(*map(max, zip(*(row[kind] for row in rows), strict=True)))
                for kind in KINDS
            }
            for rows in zip(*(rank[cell] for rank in ranks), strict=True)
        ]
        for cell in ranks[0]
    }


def report(cells: dict[str, list[dict[str, StepTime]]]) -> None:
    print(f"steps of {RANKS} ranks; ratio bitwise ÷ mpi, median [quartiles]")
    print(f"{'model  V':9}{'mpi ms':>8}{'bitwise ms':>12}   {'by the clock':22}by the processor")
    for cell, steps in cells.items():
        columns = []
        for field in StepTime._fields:
            pairs = [[getattr(found[kind], field) for kind in KINDS] for found in steps]
            columns.append(quartiles([bitwise / mpi for mpi, bitwise in pairs]))
        mpi, bitwise = (1e3 * statistics.median(s[kind].clock_s for s in steps) for kind in KINDS)
        name, number = cell.split()
        print(f"{name:6}{number:>2} {mpi:8.2f}{bitwise:12.2f}   {columns[0]:22}{columns[1]}")


def main(rounds: int) -> None:
    found = run_ranks(__file__, RANKS, str(rounds), environ={"OMP_NUM_THREADS": "1"})
    ranks = [found[f"rank-{rank}"] for rank in range(RANKS)]
    report(slower(ranks))
    if rounds == QUICK_ROUNDS:
        return
    save(
        __file__,
        micro_batches=MICRO_BATCHES,
        batch_size=BATCH,
        ranks=RANKS,
        clock_and_processor_seconds_by_rank=ranks,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main(QUICK_ROUNDS if "--quick" in sys.argv[1:] else ROUNDS)
