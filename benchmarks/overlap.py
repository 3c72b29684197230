"""Share of the communication that the backward pass hides, on a network with latency.

    python benchmarks/overlap.py            # about two minutes on two quiet cores
    python benchmarks/overlap.py --quick    # a small model and few rounds: does it run?

The GPT trains on two ranks, one thread each, over an emulated link of 1 ms latency. Its bandwidth
is such that sending the gradients takes half as long as the backward pass alone. Two settings take
turns, in one run and on the same ranks:

    off     the gradients are summed after the backward pass, all at once
    on      they are summed bucket by bucket, while it runs

The communication that can be hidden is that of `off` without the last bucket of `on`, which is
ready only when backward is over. Reported is the share of it by which a step of `on` is shorter.
Beside it stands the share by the exchange's clocks: communication during the backward pass, as a
share of all communication but the last bucket's. Raw times, commit and machine go to
runs/benchmarks/overlap.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from harness import quartiles, run_ranks, save
from phalanx.comm.link import Link
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import BucketedGradReducer
from phalanx.gradients.make_reducer import AllReduce
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.models.build import build_model
from phalanx.models.options import DataShape, ModelOptions
from phalanx.parallel.options import Overlap
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.step import Batch, StepResult
from phalanx.parallel.world_group import WorldGroup
from phalanx.run.memory import keep_freed_memory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.parallel.stepping import make_step

RANKS, LATENCY_S, SHARE_OF_BACKWARD = 2, 1e-3, 0.5
SHAPE = DataShape(inputs=(64,), num_classes=256)
SIZES = {"full": (256, 6, 16, 20), "quick": (64, 2, 4, 3)}  # width, layers, samples, rounds
ROUNDS_OF_ALONE = 5


def model(size: str) -> torch.nn.Module:
    width, layers, _, _ = SIZES[size]
    options = ModelOptions(width=width, layers=layers, heads=4)
    return build_model("gpt", seed=0, options=options, shape=SHAPE)


def batch(size: str, rank: int) -> Batch:
    samples = SIZES[size][2]
    generator = torch.Generator().manual_seed(rank)
    shape = (2, samples, *SHAPE.inputs)
    inputs, targets = torch.randint(SHAPE.num_classes, shape, generator=generator)
    return Batch(inputs, targets, samples, RANKS * targets.numel(), 0)


def strategy_on(link: Link | None, size: str, overlap: Overlap) -> Replicas:
    group = WorldGroup(World.create(timeout_s=60, link=link))
    strategy = Replicas(group, summation=AllReduce(overlap=overlap))
    strategy.prepare(model(size), OptimizerConfig(name="sgd", learning_rate=1e-3))
    return strategy


def chosen_link(size: str, backward_s: float) -> Link:
    """Return a link on which two rounds of half the gradients each take half of `backward_s`."""
    num_bytes = sum(parameter.nbytes for parameter in model(size).parameters())
    travel_s = max(1e-3, SHARE_OF_BACKWARD * backward_s - 2 * LATENCY_S)
    return Link(
        bandwidth_bytes_per_s=2 * (RANKS - 1) / RANKS * num_bytes / travel_s, latency_s=LATENCY_S
    )


def timed(strategy: Replicas, some: Batch) -> dict[str, float]:
    """Return seconds of a step on this rank, which begins when all ranks have arrived."""
    strategy.group.barrier()
    began = time.perf_counter()
    result: StepResult = make_step(strategy, some)
    ended = time.perf_counter()
    return {
        "step": ended - began,
        "forward": result.forward_s,
        "backward": result.backward_s,
        "exposed": result.communication_s,
        "hidden": result.hidden_s or 0.0,
        "last_bucket": result.last_bucket_s or 0.0,
    }


def rank_main(out: Path, size: str) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    plain = strategy_on(None, size, "off")
    some = batch(size, plain.rank)
    alone = [timed(plain, some)["backward"] for _ in range(ROUNDS_OF_ALONE + 2)][2:]
    rows = plain.group.gather([statistics.median(alone)])
    backward_s = json.loads(
        plain.group.share(json.dumps(max(row[0] for row in rows) if rows else 0))
    )
    link = chosen_link(size, backward_s)
    strategies = {"off": strategy_on(link, size, "off"), "on": strategy_on(link, size, "on")}
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(SIZES[size][3] + 2):  # the first two warm up, and learn the order
        found = {name: timed(strategy, some) for name, strategy in strategies.items()}
        if number >= 2:
            rounds.append(found)
    (out / f"rank-{plain.rank}.json").write_text(json.dumps(rounds))
    if plain.rank == 0:
        reducer = strategies["on"].reducer
        assert isinstance(reducer, BucketedGradReducer), "overlap is on"
        parameters = list(strategies["on"].model.parameters())
        buckets = [
            sum(parameters[n].nbytes for n in numbers) for numbers in reducer.bucket_members()
        ]
        setting = {
            "backward_alone_s": backward_s,
            "latency_s": link.latency_s,
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
            "bucket_bytes": buckets,
        }
        (out / "found.json").write_text(json.dumps(setting))
    plain.group.barrier()
    for strategy in (*strategies.values(), plain):
        strategy.close()


def shares(rounds: list[dict[str, dict[str, float]]]) -> tuple[list[float], list[float]]:
    """Return the hidden share per round: by the step's length, and by the exchange's clocks."""
    by_step, by_clock = [], []
    for found in rounds:
        off, on = found["off"], found["on"]
        by_step.append((off["step"] - on["step"]) / (off["exposed"] - on["last_bucket"]))
        by_clock.append(on["hidden"] / (on["hidden"] + on["exposed"] - on["last_bucket"]))
    return by_step, by_clock


def main(size: str) -> None:
    written = run_ranks(__file__, RANKS, size)
    found: dict[str, Any] = written["found"]
    ranks = [written[f"rank-{rank}"] for rank in range(RANKS)]
    # A step is over when both ranks are: the longer time counts.
    rounds = [
        {
            name: {key: max(row[name][key] for row in rows) for key in rows[0][name]}
            for name in ("off", "on")
        }
        for rows in zip(*ranks, strict=True)
    ]
    by_step, by_clock = shares(rounds)
    found |= {"share_hidden_by_step": by_step, "share_hidden_by_clock": by_clock}
    report(found, rounds)
    if size == "quick":
        return
    save(
        __file__,
        model={"width": SIZES[size][0], "layers": SIZES[size][1], "samples": SIZES[size][2]},
        ranks=RANKS,
        **found,
        seconds_by_rank_and_round=ranks,
    )


def report(found: dict[str, Any], rounds: list[dict[str, dict[str, float]]]) -> None:
    gbit_per_s = found["bandwidth_bytes_per_s"] * 8e-9
    print(
        f"backward alone {found['backward_alone_s'] * 1e3:.1f} ms; link {gbit_per_s:.2f} Gbit/s, "
        f"{found['latency_s'] * 1e3:g} ms; buckets {found['bucket_bytes']} bytes"
    )
    print(f"medians of {len(rounds)} rounds, ms; of both ranks the longer time")
    print("      step  forward  backward  exposed   hidden  last bucket")
    for name in ("off", "on"):
        row = {k: statistics.median([r[name][k] for r in rounds]) * 1e3 for k in rounds[0][name]}
        print(
            f"{name:4}{row['step']:6.1f} {row['forward']:8.1f} {row['backward']:9.1f} "
            f"{row['exposed']:8.1f} {row['hidden']:8.1f} {row['last_bucket']:12.1f}"
        )
    print("share hidden of what can be hidden, median [quartiles]:")
    print(f"  by the step's length      {quartiles(found['share_hidden_by_step'])}")
    print(f"  by the exchange's clocks  {quartiles(found['share_hidden_by_clock'])}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]), sys.argv[3])
    else:
        main("quick" if "--quick" in sys.argv[1:] else "full")
