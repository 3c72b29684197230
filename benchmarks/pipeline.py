"""A pipeline of two ranks against the same micro-batches one after the other in one process.

    python benchmarks/pipeline.py          # about five minutes on two quiet cores

The GPT, one thread a rank, 8 micro-batches a step. In rounds, each of which runs on the same ranks:

    alone       rank 0 alone: forward and backward of the micro-batches, one after the other
    alone both  the same on both ranks at once, which share memory and the clock of the processor
                but nothing else: what is lost here no pipeline can gain
    gpipe, 1f1b, interleaved, zero-bubble     two ranks

What a schedule allows is T(1) · (1/p) ÷ (1 − bubble), its bubble being that of its table, in which
stages cost alike and forward, input and weight gradient take equally long; reported is how much
longer it takes, the median over rounds. The optimizer is left out: it is the same work, halved.
Also: the bubble as recorded, and how even the cut is. Raw times, commit and machine go to
benchmarks/results/pipeline.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.jobs.record import describe_environment
from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job
from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions
from phalanx.parallel.pipeline.boundaries import Boundary, outputs_of
from phalanx.parallel.pipeline.bubble import ideal_bubble, measured_bubble
from phalanx.parallel.pipeline.chain import join_stages, layers_of, stage_of
from phalanx.parallel.pipeline.costing import shared_costs
from phalanx.parallel.pipeline.cutting import cut_evenly, imbalance
from phalanx.parallel.pipeline.engine import Pipeline
from phalanx.parallel.pipeline.layout import PipelineLayout, PipelineSchedule, layout_of
from phalanx.parallel.step import cross_entropy_sum
from phalanx.records.files import write_atomically
from phalanx.run.memory import keep_freed_memory

RANKS, MICRO_BATCHES, MICRO_BATCH_SIZE = 2, 8, 16
OPTIONS = ModelOptions(width=256, layers=8, heads=4)
SHAPE = DataShape(inputs=(64,), num_classes=256)
ROUNDS, STEPS = 5, 2
SCHEDULES: tuple[PipelineSchedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
RESULTS = Path(__file__).parent / "results" / "pipeline.json"
Step = Callable[[], object]


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (2, MICRO_BATCHES * MICRO_BATCH_SIZE, *SHAPE.inputs)
    inputs, targets = torch.randint(SHAPE.num_classes, shape, generator=generator)
    return inputs, targets


def model() -> nn.Sequential:
    made = build_model("gpt", seed=0, options=OPTIONS, shape=SHAPE)
    assert isinstance(made, nn.Sequential)
    return made


def one_after_the_other() -> Step:
    whole, (inputs, targets) = model(), batch()
    parameters = list(whole.parameters())

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        pieces = zip(inputs.split(MICRO_BATCH_SIZE), targets.split(MICRO_BATCH_SIZE), strict=True)
        for some, of_them in pieces:
            loss = cross_entropy_sum(whole(some), of_them) / targets.numel()
            loss.backward()

    return step


def pipelined(layout: PipelineLayout, costs: list[float]) -> tuple[Pipeline, Step, float]:
    """The pipeline, one step of it, and by how much its dearest stage exceeds the mean."""
    whole, (inputs, targets) = model(), batch()
    layers = list(whole)
    cut = cut_evenly(costs, [True] * len(layers), layout.num_stages)
    outputs = outputs_of(layers, inputs)
    chain, rank = layers_of(whole), dist.get_rank()
    stages = {number: stage_of(chain, cut[number]) for number in layout.stages_of(rank)}
    parameters = list(join_stages(list(stages.values())).parameters())
    group = dist.group.WORLD
    assert group is not None, "the ranks have met"
    pipeline = Pipeline(
        layout,
        stages,
        [Boundary(SHAPE.inputs, torch.int64), *(outputs[stage[-1]] for stage in cut)],
        micro_batch_size=MICRO_BATCH_SIZE,
        group=group,
    )

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        pipeline.step(inputs, targets, 1 / targets.numel())

    return pipeline, step, imbalance(costs, cut)


def timed(step: Step, *, is_mine: bool = True) -> list[float]:
    """Seconds of each step, from the first rank's beginning to the last one's end; who has no part
    in it sleeps."""
    times = []
    for _ in range(STEPS):
        quiet_barrier()
        began = time.monotonic()  # one clock for all ranks of the machine
        if is_mine:
            step()
        ended = time.monotonic()
        quiet_barrier()  # or whoever waits would burn a core
        spans: list[Any] = [None] * RANKS
        dist.all_gather_object(spans, (began, ended) if is_mine else None)
        there = [span for span in spans if span]
        times.append(max(end for _, end in there) - min(begin for begin, _ in there))
    return times


def quiet_barrier() -> None:
    """A barrier that leaves the core to the rank that is being timed."""
    from mpi4py.MPI import COMM_WORLD  # in ranks alone: importing it initialises MPI

    request = COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def rank_main(out: Path) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group("mpi")
    rank = dist.get_rank()
    inputs, _ = batch()
    costs = shared_costs(list(model()), inputs[:MICRO_BATCH_SIZE])
    layouts = {s: layout_of(s, num_ranks=RANKS, micro_batches=MICRO_BATCHES) for s in SCHEDULES}
    pipelines = {s: pipelined(layout, costs) for s, layout in layouts.items()}
    alone = one_after_the_other()
    times: dict[str, list[float]] = {}
    bubbles: dict[str, list[list[float]]] = {}
    for number in range(ROUNDS + 1):  # the first warms up
        found = {
            "alone": timed(alone, is_mine=rank == 0),
            "alone both": timed(alone),
        }
        for schedule, (pipeline, step, _) in pipelines.items():
            found[schedule] = timed(step)
            actions: list[Any] = [None] * RANKS
            dist.all_gather_object(actions, list(pipeline.actions()))
            if number:
                bubbles.setdefault(schedule, []).append(measured_bubble(actions))
        if number:
            for name, seconds in found.items():
                times.setdefault(name, []).append(statistics.median(seconds))
    if rank == 0:
        out.write_text(
            json.dumps(
                {
                    "seconds_of_a_step_by_round": times,
                    "measured_bubble_by_round_and_rank": bubbles,
                    "ideal_bubble": {s: ideal_bubble(layout) for s, layout in layouts.items()},
                    "imbalance": {s: uneven for s, (_, _, uneven) in pipelines.items()},
                    "seconds_of_each_layer": costs,
                }
            )
        )
    dist.destroy_process_group()


def report(found: dict[str, Any]) -> None:
    times, ideal = found["seconds_of_a_step_by_round"], found["ideal_bubble"]
    print(
        f"median [quartiles] over {ROUNDS} rounds; T(1) = {statistics.median(times['alone']):.3f} s"
    )
    both = [a / b for a, b in zip(times["alone both"], times["alone"], strict=True)]
    print(f"two at once ÷ one alone: {quartiles(both)}")
    print(
        "schedule     speed-up               ÷ allowed              bubble ideal measured   uneven"
    )
    for schedule in SCHEDULES:
        pairs = list(zip(times["alone"], times[schedule], strict=True))
        allowed = 1 / RANKS / (1 - ideal[schedule])
        recorded = found["measured_bubble_by_round_and_rank"][schedule]
        measured = statistics.median(sum(row) / len(row) for row in recorded)
        print(
            f"{schedule:12} {quartiles([one / two for one, two in pairs])}  "
            f"{quartiles([two / (one * allowed) for one, two in pairs])}  "
            f"{ideal[schedule]:12.3f} {measured:8.3f} {found['imbalance'][schedule]:8.3f}"
        )


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} [{low:.3f} {high:.3f}]"


def main() -> None:
    mpi = find_mpi(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = mpi_job(
            mpi,
            RANKS,
            [sys.executable, __file__, "rank", str(folder / "found.json")],
            cores=usable_cores(),
            environ=os.environ,
        )
        with Job.start([command], folder / "log") as job:
            while (code := job.poll()) is None:
                time.sleep(0.5)
        if code:
            sys.exit((folder / "log").read_text())
        found = json.loads((folder / "found.json").read_text())
    report(found)
    document: dict[str, Any] = {
        "command": "python benchmarks/pipeline.py",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(str(mpi))),
        "model": {**vars(OPTIONS), "context": SHAPE.inputs[0], "vocabulary": SHAPE.num_classes},
        "micro_batches": MICRO_BATCHES,
        "micro_batch_size": MICRO_BATCH_SIZE,
        **found,
    }
    write_atomically(RESULTS, json.dumps(document, indent=1).encode())
    print(f"raw times: {RESULTS}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]))
    else:
        main()
