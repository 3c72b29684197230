"""Split layers against one rank, and FSDP2 on `mpi` against Gloo, as `phalanx train` runs them.

    python benchmarks/splits.py            # some four minutes on two cores; needs a quiet machine

Every cell is a job of its own, one compute thread a rank; the cells take turns, in rounds. What
counts is a job's median step without its first ones, and of these the median over the rounds:

    tensor    an MLP of 4,096 hidden units, batch 128: two ranks that share its layers, one rank
    fsdp      a GPT of width 256, batch 64: FSDP2 (ZeRO stage 3) on two ranks, on mpi and on Gloo

Raw times, commit and machine go to benchmarks/results/splits.json.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from phalanx.jobs.record import describe_environment
from phalanx.records.events import StepEvent
from phalanx.records.files import rank_file, read_events, write_atomically
from phalanx.train.config import TrainConfig
from phalanx.train.job import run_job
from phalanx.train.progress import step_s
from phalanx.train.run import complete

ROUNDS = 3
WARM_UP = 5
RESULTS = Path(__file__).parent / "results" / "splits.json"

MLP = partial(
    TrainConfig.from_options,
    model="mlp", width=4096, dataset="digits", train_samples=40 * 128, validation_samples=100,
    epochs=1, threads=1,
)  # fmt: skip
GPT = partial(
    TrainConfig.from_options,
    model="gpt", width=256, layers=4, heads=4, train_samples=20 * 64, validation_samples=100,
    batch_size=64, epochs=1, threads=1,
)  # fmt: skip
CELLS = {
    "mlp, one rank": MLP(),
    "mlp, tp=2": MLP(strategy="tensor", ranks=2),
    "gpt, one rank": GPT(),
    "gpt, fsdp on mpi": GPT(strategy="zero", ranks=2),
    "gpt, fsdp on gloo": GPT(strategy="zero", ranks=2, backend="gloo"),
}
RATIOS = {
    "tensor-parallel MLP over one rank": ("mlp, one rank", "mlp, tp=2"),
    "FSDP2 on mpi over one rank": ("gpt, one rank", "gpt, fsdp on mpi"),
    "FSDP2 on mpi over FSDP2 on Gloo": ("gpt, fsdp on gloo", "gpt, fsdp on mpi"),
}


def steps_of(config: TrainConfig, folder: Path) -> list[float]:
    """Seconds of each step of a run, of rank 0, which waits for the others in every step."""
    config, _ = complete(config, None)
    run_job(config, folder, study="splits", command=["benchmarks/splits.py"], console=QUIET)
    events = read_events(rank_file(folder, 0))
    return [step_s(event) for event in events if isinstance(event, StepEvent)][WARM_UP:]


QUIET = Console(quiet=True)


def main() -> None:
    times: dict[str, list[list[float]]] = {name: [] for name in CELLS}
    with tempfile.TemporaryDirectory(prefix="phalanx-splits-") as work:
        for number in range(ROUNDS):
            for name, config in CELLS.items():
                times[name].append(steps_of(config, Path(work) / f"{number}-{name}"))
                step = f"{statistics.median(times[name][-1]) * 1e3:9.2f} ms a step"
                print(f"round {number + 1}/{ROUNDS}  {name:20}{step}", flush=True)
    middle = {name: [statistics.median(job) for job in jobs] for name, jobs in times.items()}
    print()
    for name, jobs in middle.items():
        print(f"{name:36}{statistics.median(jobs) * 1e3:9.2f} ms a step"
              f"   rounds {' '.join(f'{job * 1e3:.2f}' for job in jobs)}")  # fmt: skip
    ratios = {}
    for name, (slow, fast) in RATIOS.items():
        rounds = [a / b for a, b in zip(middle[slow], middle[fast], strict=True)]
        ratios[name] = rounds
        print(f"{name:36}{statistics.median(rounds):9.2f}"
              f"   rounds {' '.join(f'{ratio:.2f}' for ratio in rounds)}")  # fmt: skip
    document = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(None)),
        "cells": {name: config.as_record() for name, config in CELLS.items()},
        "step_s": times,
        "ratios": ratios,
    }
    write_atomically(RESULTS, json.dumps(document, indent=1).encode() + b"\n")
    print(f"\nraw times in {RESULTS}")


if __name__ == "__main__":
    main()
