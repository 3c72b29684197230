"""Gradients in fewer bytes: steps of a communication-bound network with every compressor, side by
side in turn, in this node's memory and on emulated links; the accuracy they come to; and what the
codings cost by themselves.

    python benchmarks/compression.py
    python benchmarks/compression.py --links 1Gbit/s --seconds 5 --seeds 0
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from phalanx.comm.world import World
from phalanx.data.datasets.dataset import Dataset, load_dataset
from phalanx.gradients.compression.codec import BFloat16, BlockInt8, Float32, ScaledFloat16
from phalanx.gradients.compression.make import make_compressor
from phalanx.gradients.make_reducer import make_bucketed_reducer
from phalanx.jobs.record import describe_environment
from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job
from phalanx.models.build import build_model
from phalanx.models.options import ModelOptions
from phalanx.torch_backend.tensors import buffer_of

PLACES = ("memory", "10Gbit/s", "1Gbit/s", "100Mbit/s")
COMPRESSORS = ("none", "fp16", "bf16", "int8", "powersgd", "topk")
RESULT = Path(__file__).parent / "results" / "compression.json"
Task = dict[str, Any]
"""The options, and what a rank is to do."""

WARM_UP = 3  # steps of each; the first makes its buckets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", nargs="*", default=list(PLACES))
    parser.add_argument("--compressors", nargs="*", default=list(COMPRESSORS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16, help="samples over all ranks together")
    parser.add_argument("--overlap", choices=("on", "off"), default="off")
    parser.add_argument("--seconds", type=float, default=25.0, help="of timing in each place")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--rank", help=argparse.SUPPRESS)  # what a rank is to do, as JSON
    options = parser.parse_args()
    if options.rank:
        rank_main(json.loads(options.rank))
        return
    given = {k: v for k, v in vars(options).items() if k not in ("rank", "output")}
    result: dict[str, object] = {"options": given, "codings_ns_per_value": codings()}
    result["places"] = {place: run(options.ranks, given, place) for place in options.links}
    if options.seeds:
        result["accuracy"] = run(options.ranks, given, None)
    result["environment"] = where()
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    show(result)


def run(ranks: int, given: dict[str, object], place: str | None) -> object:
    """A job of its own for each place; None: whole trainings in memory."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        task = json.dumps({**given, "place": place, "answer": str(answer)})
        os.environ.update(OMP_NUM_THREADS="1", PHALANX_COUNT="1")
        os.environ.pop("PHALANX_LINK", None)
        if place not in (None, "memory"):
            os.environ["PHALANX_LINK"] = str(place)
        words = [sys.executable, __file__, "--rank", task]
        command = mpi_job(
            find_mpi(os.environ), ranks, words, cores=usable_cores(), environ=os.environ
        )
        with Job.start([command], Path(folder) / "log") as job:
            code = job.wait(1800)
        if code != 0:
            sys.exit(f"{place}: exit code {code}\n{(Path(folder) / 'log').read_text()}")
        return json.loads(answer.read_text())


def rank_main(task: Task) -> None:
    torch.set_num_threads(1)
    world = World.create(timeout_s=120)
    answer: dict[str, object] = {}
    if task["place"] is None:
        answer = accuracies(world, task)
    else:
        if task["place"] == "memory":
            answer["kernels_s"] = kernels(world, task)
        answer["steps"] = times(world, task)
    if world.rank == 0:
        Path(task["answer"]).write_text(json.dumps(answer))
    world.close()


class Training:
    """One compressor's model; all on the same world, which take turns."""

    def __init__(self, world: World, task: Task, compressor: str, seed: int) -> None:
        self.world, self.size = world, world.size
        self.model = build_model("mlp", seed=seed, options=ModelOptions(width=task["width"]))
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.02, momentum=0.9)
        self.compressor = make_compressor(compressor, seed=seed)
        self.reducer = make_bucketed_reducer(
            world,
            self.parameters,
            self.compressor,
            overlaps=task["overlap"] == "on",
        )

    def step(self, images: Tensor, labels: Tensor, batch: int) -> float:
        """Seconds of it on this rank."""

        began = time.perf_counter()
        for parameter in self.parameters:
            parameter.grad = None
        loss = torch.nn.functional.cross_entropy(self.model(images), labels, reduction="sum")
        with self.reducer:
            (loss / batch).backward()
        self.optimizer.step()
        return time.perf_counter() - began


def times(world: World, task: Task) -> dict[str, object]:
    """Of each compressor the steps' seconds of the slowest rank, and its counted bytes."""
    traffic = world.traffic
    assert traffic is not None, "PHALANX_COUNT is set"
    trainings = {name: Training(world, task, name, seed=0) for name in task["compressors"]}
    share = task["batch"] // world.size
    images = torch.randn(share, 1, 28, 28, generator=torch.Generator().manual_seed(world.rank))
    labels = torch.arange(share) % 10
    steps: dict[str, list[float]] = {name: [] for name in trainings}
    sent: dict[str, int] = {}
    gc.disable()
    until = time.perf_counter() + task["seconds"]
    rounds = 0
    while world.share(rounds < WARM_UP + 3 or time.perf_counter() < until):
        rounds += 1
        for name, training in trainings.items():
            world.barrier()
            before = traffic.snapshot()
            step_s = training.step(images, labels, task["batch"])
            sent[name] = (traffic.snapshot() - before).sent_bytes
            everybody = world.gather(np.array([step_s]))
            if everybody is not None:
                steps[name].append(float(everybody.max()))
    for training in trainings.values():
        training.reducer.close()
    medians = {name: statistics.median(s[WARM_UP:]) for name, s in steps.items() if s}
    return {
        name: {
            "step_s": medians[name],
            "times_as_fast": medians["none"] / medians[name] if "none" in medians else None,
            "sent_bytes": sent[name],
            "kept_bytes": trainings[name].compressor.state_bytes(),
            "all_steps_s": steps[name][WARM_UP:],
        }
        for name in medians
    }


def kernels(world: World, task: Task) -> dict[str, list[float]]:
    """Sums in shared memory of as many values as the model has: in float32, and in bfloat16 of
    values that are halves already, which a kernel that wrote halves could at best come to."""
    model = build_model("mlp", seed=0, options=ModelOptions(width=task["width"]))
    count = sum(parameter.numel() for parameter in model.parameters())
    values = {"float32": torch.zeros(count), "bfloat16": torch.zeros(count, dtype=torch.bfloat16)}
    taken: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(40):
        for name, some in values.items():
            world.barrier()
            began = time.perf_counter()
            world.group.all_reduce(buffer_of(some))
            everybody = world.gather(np.array([time.perf_counter() - began]))
            if everybody is not None:
                taken[name].append(float(everybody.max()))
    return taken


def accuracies(world: World, task: Task) -> dict[str, object]:
    """Of each compressor the validation accuracy after the last epoch, seed by seed."""
    data = load_dataset("auto")
    told: dict[str, list[float]] = {name: [] for name in task["compressors"]}
    for seed in task["seeds"]:
        for name in told:
            training = Training(world, task, name, seed)
            train(training, data, task, seed)
            with torch.no_grad():
                logits = training.model(data.validation_inputs)
            hits = (logits.argmax(1) == data.validation_targets).double().mean()
            told[name].append(float(hits))
            training.reducer.close()
    return {
        name: {"mean": statistics.mean(a), "low": min(a), "high": max(a), "all": a}
        for name, a in told.items()
    }


def train(training: Training, data: Dataset, task: Task, seed: int) -> None:
    """The learning rate falls along a cosine."""
    batch, count = task["batch"], min(task["samples"], len(data.train_inputs))
    num_steps = count // batch * task["epochs"]
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, num_steps)
    share = batch // training.size
    generator = torch.Generator().manual_seed(seed)
    for _ in range(task["epochs"]):
        order = torch.randperm(count, generator=generator)
        for at in range(0, count - batch + 1, batch):
            begin = at + training.world.rank * share
            mine = order[begin : begin + share]
            training.step(data.train_inputs[mine], data.train_targets[mine], batch)
            falling.step()


def codings() -> dict[str, object]:
    """The least time of several, of a million values, on one core."""
    torch.set_num_threads(1)
    count = 2**20
    values, residual = torch.randn(count), torch.zeros(count)
    told: dict[str, object] = {}
    for name, codec in (
        ("fp32", Float32()),
        ("fp16", ScaledFloat16()),
        ("bf16", BFloat16()),
        ("int8", BlockInt8()),
    ):
        encoded = torch.empty(codec.num_bytes(count), dtype=torch.uint8)
        told[name] = {
            "encode": least(lambda: codec.encode(values, encoded, residual), count),  # noqa: B023
            "decode": least(lambda: codec.decode(encoded, values, accumulate=False), count),  # noqa: B023
            "add": least(lambda: codec.decode(encoded, values, accumulate=True), count),  # noqa: B023
        }
    return told


def least(work: Callable[[], object], count: int) -> float:
    """Nanoseconds a value."""
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken) / count * 1e9


def where() -> dict[str, object]:
    environment: dict[str, object] = msgspec.to_builtins(describe_environment(None))
    return environment


def show(result: dict[str, Any]) -> None:
    for place, told in result["places"].items():
        print(place)
        for name, taken in told.get("kernels_s", {}).items():
            print(f"  {name} sums in memory: {1e3 * statistics.median(taken):.2f} ms")
        for name, figures in told["steps"].items():
            ms, times_ = 1e3 * figures["step_s"], figures["times_as_fast"] or 0
            print(f"  {name:9} {ms:9.2f} ms  {times_:5.2f}x  {figures['sent_bytes']:>12,} bytes")
    for name, figures in result.get("accuracy", {}).items():
        print(f"  {name:9} {figures['mean']:.4f}  {figures['low']:.4f} to {figures['high']:.4f}")


if __name__ == "__main__":
    main()
