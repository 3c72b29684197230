"""Profile a training: runs of one rank each, alone and as many at once as cores, of the part of its
batch that a rank has and of a small one. They exchange nothing.

A training is one of `phalanx train`, or a user's program of `phalanx.start`. Beside the first run
its model is measured part by part (`parallel/program_costs.py`); sums are measured at its sizes.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import yaml
from rich.console import Console

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.job import run_bench
from phalanx.comm.link import LINK
from phalanx.data.datasets.inventory import inventory
from phalanx.data.packed.index_file import read_index
from phalanx.errors import RunFailedError, UserError
from phalanx.jobs import run_python
from phalanx.jobs.binding import THREAD_POOLS
from phalanx.jobs.command import Command, memory_variables
from phalanx.jobs.core_probe import call_s, probe
from phalanx.jobs.cores import usable_memory_bytes
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.job import Job
from phalanx.jobs.record import RUN_DIR
from phalanx.plan.machine import SumTime
from phalanx.plan.profile import (
    FEWEST_STEPS,
    ProgramCosts,
    ProgramProfile,
    profile_of_runs,
    write_profile,
)
from phalanx.records.collectives import CallsEvent, TrafficEvent
from phalanx.records.events import StepEvent
from phalanx.records.files import rank_file, read_events, record_file
from phalanx.records.profiled import PROFILE_PLAN, ProfilePlan
from phalanx.records.schema import Run
from phalanx.run.defaults import STRATEGY
from phalanx.train.config import DEFAULTS, TrainConfig
from phalanx.train.run import num_available

FIRST_STEPS, LEAST_STEPS, MOST_STEPS = 8, 12, 2000
"""Steps of the first run, by which those of the runs that count are chosen."""
RUN_S = 2.5
"""Seconds of steps of a run that counts; a median of fewer steps would say little."""
SMALLEST_SHARE = 16
"""Ranks of which the smallest batch that is measured is a share, at most."""
MIDDLE_FROM = 3
"""Ranks at once beyond which so many are not all that is measured beside one."""
SUMS_S = 0.7
SUMMED_PARTS, SMALLEST_SUM = (1, 4, 16), 4096
VALIDATION_SAMPLES, EVALUATED_SAMPLES = 64, 500
"""Evaluated after an epoch; and of one rank alone, whose memory and evaluation are measured."""
LOG, COSTS, CHECKPOINTS = "profile.log", "costs.json", "checkpoints"


def _measured(plan: ProfilePlan) -> dict[str, str]:
    return {PROFILE_PLAN: msgspec.json.encode(plan).decode()}


@dataclass(frozen=True)
class TrainingOfOptions:
    """A training by `phalanx train`.

    As of a program: `run` makes so many steps by one process per folder, all at the same time, with
    records there. batch: samples of a step; None: as the training has them. is_first: they measure
    the model part by part and save a checkpoint, beside the folder. `known` returns the fields of a
    profile that such short runs do not tell. `name` is the program's; empty: as in the records.
    """

    config: TrainConfig
    """Complete, of one process and thread."""
    name: str = ""

    def run(
        self, folders: Sequence[Path], steps: int, batch: int | None, *, is_first: bool = False
    ) -> None:
        top = folders[0].parent.absolute()
        options: dict[str, object] = {"batch_size": batch or self.config.global_batch_size()}
        if is_first:
            options["checkpoint_dir"] = str(top / CHECKPOINTS)
        elif len(folders) == 1:
            options["validation_samples"] = EVALUATED_SAMPLES
        run_trainings(
            self.config,
            folders,
            steps,
            _measured(ProfilePlan(costs=str(top / COSTS))) if is_first else {},
            **{"strategy": "sequential", "ranks": 1, **options},
        )

    def known(self, profile: ProgramProfile) -> dict[str, Any]:
        config = self.config
        sample_bytes = 0.0
        if config.data is not None:
            index = read_index(config.data / "train")
            files = (file.bytes for shard in index.shards for file in shard.files)
            sample_bytes = sum(files) / index.num_samples
            number = read_index(config.data / "validation").num_samples
        else:
            name, entries = config.data_name, inventory(config.data_root)
            number = next(each.num_validation_samples for each in entries if each.name == name)
        share = min(config.validation_samples or number, number) / min(EVALUATED_SAMPLES, number)
        return {
            "epochs": config.epochs,
            "sample_bytes": sample_bytes,
            "train_samples": config.train_samples or num_available(config),
            "evaluation_s": share * (profile.evaluation_s or 0.0),
        }


def run_trainings(
    config: TrainConfig,
    folders: Sequence[Path],
    steps: int,
    environment: Mapping[str, str] = MappingProxyType({}),
    /,
    **changes: object,
) -> Sequence[Path]:
    """Make a training of so many steps per folder, all at the same time; return the folders.

    environment: variables of the processes. changes: options other than those of `config`, which
    name a batch.
    Raises: RunFailedError with the end of the log of one that failed.
    """
    samples = config.train_samples or num_available(config)
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
    commands = [
        Command(words=(*words, "--run-dir", str(folder)), environment=environment)
        for folder in folders
    ]
    exit_code, log = _run(commands, folders[0].parent)
    if exit_code:
        raise RunFailedError("a run of the profile has failed:\n" + "\n".join(log[-4:]))
    return folders


def _run(commands: Sequence[Command], top: Path) -> tuple[int, list[str]]:
    """Run processes until all have ended, and remove their checkpoint; return the exit code of the
    first that failed, and the lines that they have printed."""
    log = top / LOG
    before = log.stat().st_size if log.exists() else 0
    with Job.start(commands, log) as job:
        while (exit_code := job.poll()) is None:
            time.sleep(0.05)
    shutil.rmtree(top / CHECKPOINTS, ignore_errors=True)
    text = log.read_bytes()[before:].decode(errors="replace")
    text = text.split("Exception ignored in")[0]  # Python's, of loops that are left unfinished
    return exit_code, [line for line in text.splitlines() if line.strip()]


@dataclass(frozen=True)
class TrainingOfProgram:
    """A training by a user's program of `phalanx.start`."""

    words: Sequence[str]
    """`program.py …` or `-m module …`."""

    @property
    def name(self) -> str:
        return shlex.join(self.words)

    def run(
        self, folders: Sequence[Path], steps: int, batch: int | None, *, is_first: bool = False
    ) -> None:
        """Raises: UserError, for what the user can mend in it or its arguments."""
        top = folders[0].parent.absolute()
        plan = ProfilePlan(
            steps=steps,
            batch_size=batch,
            costs=str(top / COSTS) if is_first else None,
            checkpoints=str(top / CHECKPOINTS) if is_first else None,
        )
        variables = {
            **dict.fromkeys(THREAD_POOLS, "1"),
            **memory_variables(os.environ),
            **{STRATEGY: "sequential", "PYTHONDONTWRITEBYTECODE": "1"},
            **_measured(plan),
        }
        words = (sys.executable, run_python.__file__, *self.words)
        commands = [
            Command(words=words, environment={**variables, RUN_DIR: str(folder.absolute())})
            for folder in folders
        ]
        for folder in folders:
            folder.mkdir()
        exit_code, log = _run(commands, top)
        size = "its own batch" if batch is None else f"{batch} samples a step"
        if exit_code:
            why = log[-1].removeprefix("phalanx: ") if log else f"exit code {exit_code}"
            raise UserError(
                f"{self.name} fails with {size}: {why}\nall that it printed: {top / LOG}"
            )
        for folder in folders:
            self._check(folder, batch)

    def _check(self, folder: Path, batch: int | None) -> None:
        """Raise UserError for a program that did not make the steps that it was asked for."""
        if not record_file(folder, Run).exists():
            raise UserError(
                f"{self.name} did not start a run by phalanx.start, whose steps a plan measures"
            )
        events = read_events(rank_file(folder, 0))
        steps = [event for event in events if isinstance(event, StepEvent)]
        if len(steps) < FEWEST_STEPS:
            raise UserError(
                f"{self.name} ended after {len(steps)} steps, and a plan needs {FEWEST_STEPS} or "
                "more: let it train for longer"
            )
        made = max(step.samples for step in steps)
        if batch is not None and made != batch:
            raise UserError(
                f"{self.name} made steps of {made} samples where {batch} were asked for: it makes "
                "its batches itself; plan by a recorded run of one rank, phalanx plan FOLDER"
            )

    def known(self, _: ProgramProfile) -> dict[str, Any]:
        return {}


Training = TrainingOfOptions | TrainingOfProgram


def measure_profile(
    training: Training,
    folder: Path,
    *,
    most_ranks: int,
    at_once: int,
    console: Console,
    for_link: bool = False,
    run_s: float = RUN_S,
) -> ProgramProfile:
    """Return the profile of a training, whose batch is the global one that is planned with, and
    write it into `folder`, a new one.

    most_ranks: that are planned for. at_once: most ranks of this node that compute, of which there
    are fewer where the memory has no place for them. for_link: the plan is for an emulated link.
    Raises: RunFailedError or UserError with the end of the log of a run that failed.
    """
    if at_once > 1:
        find_mpi(os.environ)  # sums need one: refused before anything is measured
    folder.mkdir(parents=True, exist_ok=True)
    console.print("one rank: layers, gradients, a checkpoint", markup=False)
    training.run([folder / "first"], FIRST_STEPS, None, is_first=True)
    first = profile_of_runs({1: [folder / "first"]})
    fit = max(1, int(usable_memory_bytes() / max(1, first.peak_memory_bytes)))
    if fit < at_once:
        each = f"{first.peak_memory_bytes / 2**30:.1f} GiB each"
        console.print(f"{fit} of {at_once} ranks at once fit into memory, {each}", markup=False)
        at_once = fit
    smallest = first.samples_of_rank(min(SMALLEST_SHARE, max(2, most_ranks)))
    runs, shares, calls = dict[int, list[Path]](), [probe(at_once).core_share], [call_s()]
    numbers = sorted({1, _middle(at_once), at_once})
    sizes = {(number, first.samples_of_rank(number)) for number in numbers}
    for number, batch in sorted(sizes | {(number, smallest) for number in numbers}):
        part = batch / first.global_batch
        likely_s = first.times[0].median_s * math.sqrt(part)  # some of it is for any batch
        steps = max(LEAST_STEPS, min(MOST_STEPS, int(run_s / likely_s)))
        console.print(f"{number} at once, {batch} samples a step", markup=False)
        folders = [folder / f"at-once-{number}-batch-{batch}-{i}" for i in range(number)]
        training.run(folders, steps, batch)
        runs.setdefault(number, []).extend(folders)
        shares.append(probe(at_once).core_share)
        calls.append(call_s())
    profile = profile_of_runs(runs, global_batch=first.global_batch, program=training.name)
    console.print("sums of its gradients", markup=False)
    fields: dict[str, Any] = {
        "core_share": statistics.median(shares),
        "call_s": statistics.median(calls),
        "micro_batches": first.micro_batches,
        **{"checkpoint_s": first.checkpoint_s, **read_costs(folder / COSTS)},
        **training.known(profile),
        **measure_sums(folder / "sums", profile.gradient_bytes, at_once, console),
    }
    if for_link and at_once > 1:
        fields["message_overhead_s"] = measure_overhead(folder / "link", at_once, console)
    profile = msgspec.structs.replace(profile, **fields)
    write_profile(folder, profile)
    return profile


def _middle(at_once: int) -> int:
    """Return the power of two between 1 and `at_once`, about its root: memory that some ranks do
    not fill may be too slow for more, so a line from one to all would be too high."""
    return 2 ** round(math.log2(at_once) / 2) if at_once > MIDDLE_FROM else 1


def read_costs(path: Path) -> dict[str, Any]:
    """Return the fields of a profile that a first run has written beside its folder."""
    return msgspec.structs.asdict(msgspec.json.decode(path.read_bytes(), type=ProgramCosts))


def measure_sums(folder: Path, num_bytes: int, ranks: int, console: Console) -> dict[str, Any]:
    """Return sums of `num_bytes` and of parts of it in memory that `ranks` share, and the rate of
    that memory. No bucket is far from a measured size: a cache may lie between."""
    if ranks < 2:
        return {}
    sizes = sorted({max(SMALLEST_SUM, num_bytes // part // 8 * 8) for part in SUMMED_PARTS})
    wanted = [*sizes[:-1], num_bytes]
    _run_sums(folder, ranks, wanted, ("phalanx", "direct"), console)
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
    _run_sums(folder, ranks, [16], ("phalanx",), console, {LINK: OVERHEAD_LINK})
    (found,) = sums_of(folder, ranks, "phalanx")
    return max(0.0, found.seconds - OVERHEAD_LATENCY_S)


def _run_sums(
    folder: Path,
    ranks: int,
    sizes: Sequence[int],
    paths: tuple[str, ...],
    console: Console,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    config = CollectivesConfig(
        ranks=ranks, sizes=tuple(map(str, sizes)), paths=paths, seconds=SUMS_S, output=folder
    )
    run_bench(config, folder, console=console, environment=environment)


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
