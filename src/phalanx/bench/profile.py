"""Profile a built-in model's training: runs of one rank each, alone and as many at once as cores.

Each is a `phalanx train` of one process; they exchange nothing. Beside them the model's gradients
are timed by hooks of this module's own, and sums are measured at this model's sizes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.job import run_bench
from phalanx.comm.link import LINK
from phalanx.data.datasets.catalog import DatasetChoice
from phalanx.errors import RunFailedError
from phalanx.jobs.command import Command
from phalanx.jobs.job import Job
from phalanx.jobs.record import this_command
from phalanx.models.options import is_own_model
from phalanx.plan.machine import SumTime
from phalanx.plan.profile import Gradient, ProgramProfile, profile_of_runs, write_profile
from phalanx.records.collectives import CallsEvent, TrafficEvent
from phalanx.records.files import read_events
from phalanx.train.config import DEFAULTS, TrainConfig
from phalanx.train.run import complete, num_available

PILOT_STEPS = 24
RUN_S = 3.0
"""Seconds of steps of a run that counts; a median of fewer steps would say little."""
MOST_STEPS = 2000
SUMS_S = 2.0
VALIDATION_SAMPLES = 64
LOG = "profile.log"


def measure_profile(
    config: TrainConfig,
    folder: Path,
    *,
    batches: Sequence[int],
    at_once: int,
    console: Console,
    for_link: bool = False,
    run_s: float = RUN_S,
) -> ProgramProfile:
    """Return the profile of a training by one process, and write it into `folder`, a new one.

    config: complete, of strategy sequential; its batch is the global one that is planned with.
    batches: samples of a step of one rank, from small to large. at_once: most ranks of this node
    that compute. for_link: the plan is for an emulated link.
    Raises: RunFailedError when a run has failed, with the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[int, list[Path]] = {}
    for batch in batches:
        pilot = _train(config, [folder / f"pilot-{batch}"], batch, PILOT_STEPS)
        step_s = profile_of_runs({1: pilot}).times[0].median_s
        steps = max(2 * PILOT_STEPS, min(MOST_STEPS, int(run_s / step_s)))
        for number in sorted({1, at_once}):
            console.print(f"{number} at once, {batch} samples a step", markup=False)
            folders = [folder / f"at-once-{number}-batch-{batch}-{i}" for i in range(number)]
            runs.setdefault(number, []).extend(_train(config, folders, batch, steps))
    profile = profile_of_runs(runs, global_batch=config.global_batch_size())
    console.print("gradients and sums", markup=False)
    profile = msgspec.structs.replace(
        profile,
        gradients=measure_gradients(config, max(batches)),
        **measure_sums(folder / "sums", profile.gradient_bytes, at_once, console),
    )
    if for_link and at_once > 1:
        overhead_s = measure_overhead(folder / "link", at_once, console)
        profile = msgspec.structs.replace(profile, message_overhead_s=overhead_s)
    write_profile(folder, profile)
    return profile


def _train(config: TrainConfig, folders: Sequence[Path], batch: int, steps: int) -> Sequence[Path]:
    """Train one process per folder, all at the same time; return the folders."""
    return run_trainings(config, folders, steps, strategy="sequential", ranks=1, batch_size=batch)


def run_trainings(
    config: TrainConfig, folders: Sequence[Path], steps: int, **changes: object
) -> Sequence[Path]:
    """Make a training of so many steps per folder, all at the same time; return the folders.

    changes: options other than those of `config`, which name a batch.
    Raises: RunFailedError with the end of the log of one that failed.
    """
    top, samples = folders[0].parent, config.train_samples or num_available(config)
    wanted = int(str(changes["batch_size"])) * steps
    given = {k: v for k, v in config.as_record().items() if v != DEFAULTS[k] and v is not None}
    options = {
        **{k: list(v) if isinstance(v, tuple) else v for k, v in given.items()},
        **{"epochs": -(-wanted // samples), "train_samples": min(samples, wanted)},
        **{"validation_samples": VALIDATION_SAMPLES, **changes},
    }
    options_file = folders[0].with_suffix(".yaml")
    options_file.write_text(yaml.safe_dump(options))
    words = (sys.executable, "-m", "phalanx", "train", "--config", str(options_file))
    commands = [Command(words=(*words, "--run-dir", str(folder))) for folder in folders]
    with Job.start(commands, top / LOG) as job:
        while (exit_code := job.poll()) is None:
            time.sleep(0.05)
    if exit_code:
        end = (top / LOG).read_text(errors="replace").strip().splitlines()[-4:]
        raise RunFailedError("a run of the profile has failed:\n" + "\n".join(end))
    return folders


def measure_gradients(config: TrainConfig, batch: int) -> list[Gradient]:
    """Return when each gradient of a built-in model is ready, as shares of the backward pass; empty
    for a model of the user's."""
    choice = complete(config, None)[1]
    if is_own_model(config.model) or not isinstance(choice, DatasetChoice):
        return []
    request = {
        "model": config.model,
        "sizes": config.model_options.given,
        "shape": {"inputs": choice.shape.inputs, "num_classes": choice.shape.num_classes},
        "batch": batch,
        "threads": config.threads,
    }
    words = [sys.executable, "-m", "phalanx.bench.gradient_order", json.dumps(request)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailedError(f"the gradients of {config.model} cannot be timed:\n{done.stderr}")
    return [Gradient(bytes=size, ready=ready) for size, ready in json.loads(done.stdout)]


def measure_sums(folder: Path, num_bytes: int, ranks: int, console: Console) -> dict[str, Any]:
    """Return sums of `num_bytes` in memory that `ranks` share, and the rate of that memory."""
    if ranks < 2:
        return {}
    config = CollectivesConfig(
        ranks=ranks,
        sizes=(str(num_bytes),),
        paths=("phalanx", "direct"),
        seconds=SUMS_S,
        output=folder,
    )
    run_bench(config, folder, command=this_command(), console=console)
    return {
        "sums": sums_of(folder, ranks, "phalanx"),
        "message_sums": sums_of(folder, ranks, "direct"),
        "memory_bytes_per_s": max(memory_rates(folder).items())[1],
    }


OVERHEAD_LINK, OVERHEAD_LATENCY_S = "1ms", 1e-3
"""Emulated link without a limit to its bandwidth, beside whose latency the rest is measured."""


def measure_overhead(folder: Path, ranks: int, console: Console) -> float:
    """Return the seconds of a short sum over an emulated link beside the link's own latency: ranks
    sleep, are woken, and hand on what has come."""
    config = CollectivesConfig(
        ranks=ranks, sizes=("16",), paths=("phalanx",), seconds=SUMS_S, output=folder
    )
    before = os.environ.get(LINK)
    os.environ[LINK] = OVERHEAD_LINK
    try:
        run_bench(config, folder, command=this_command(), console=console)
    finally:
        if before is None:
            del os.environ[LINK]
        else:
            os.environ[LINK] = before
    (found,) = sums_of(folder, ranks, "phalanx")
    return max(0.0, found.seconds - OVERHEAD_LATENCY_S)


def sums_of(folder: Path, ranks: int, path: str) -> list[SumTime]:
    """Return the sums that a benchmark of collectives has timed, by size; the slowest rank's."""
    by_size: dict[int, list[list[float]]] = {}
    for rank in range(ranks):
        for event in read_events(folder / f"rank-{rank}.jsonl"):
            if isinstance(event, CallsEvent) and event.path == path:
                calls = by_size.setdefault(event.bytes, [[] for _ in range(ranks)])
                calls[rank] += event.times_s
    found = []
    for size, calls in sorted(by_size.items()):
        slowest = sorted(max(times) for times in zip(*calls, strict=False))
        low, middle, high = (slowest[int(q * (len(slowest) - 1))] for q in (0.25, 0.5, 0.75))
        spread = round((high - low) / 2 / middle, 4)
        found.append(SumTime(ranks=ranks, bytes=size, seconds=middle, spread=spread))
    return found


def memory_rates(folder: Path) -> dict[int, float]:
    """Return the bytes per second of rank 0's memory by working set, all ranks at once: copies."""
    times: dict[int, list[float]] = {}
    for event in read_events(folder / "rank-0.jsonl"):
        if isinstance(event, TrafficEvent) and event.kernel == "copy":
            times.setdefault(event.working_set_bytes, []).extend(event.times_s)
    return {size: size / sorted(some)[len(some) // 2] for size, some in times.items()}
