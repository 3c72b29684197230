"""Profiles of a program: its steps on ranks that exchange nothing, read from records. Pure.

A profile is made of runs of one rank each: alone, and as many at once as the machine has cores. No
step of ranks that communicate is in it; what these take beside is predicted.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from phalanx.errors import UserError
from phalanx.models.splits import SplitTraffic
from phalanx.parallel.costs import ParameterSpec
from phalanx.plan.machine import SumTime
from phalanx.records.events import (
    EvaluationEvent,
    FinishedEvent,
    MemoryEvent,
    SavedEvent,
    StartedEvent,
    StepEvent,
)
from phalanx.records.files import read_events, read_run, write_atomically
from phalanx.records.schema import Run

PROFILE = "profile.json"
WARM_UP = 1 / 4
"""Share of the first steps that is left out: caches, allocators and clocks settle."""
FEWEST_STEPS = 8
CALL_S = 95e-6
"""Seconds of `core_probe.call_s` where constants were found, inferred from equally long steps."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of ranks that ran at the same time, each alone; seconds by rank and step."""

    at_once: int
    samples: int
    """Samples of a step of a rank."""
    peak_bytes: int = 0
    """Most memory of a rank's process; 0: not known."""
    step_s: list[list[float]]
    """Seconds between the ends of a step and of the one before, by rank."""
    data_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    """Medians over all ranks and steps, as the three before."""

    @property
    def pooled(self) -> list[float]:
        """Return the steps of all ranks, sorted."""
        return sorted(seconds for rank in self.step_s for seconds in rank)

    def means(self, period: int) -> list[float]:
        """Return the mean steps of all stretches of so many, sorted; none if runs are shorter."""
        return sorted(
            statistics.fmean(rank[start : start + period])
            for rank in self.step_s
            for start in range(0, len(rank) - period + 1, period)
        )

    @property
    def median_s(self) -> float:
        return statistics.median(self.pooled)


class Gradient(msgspec.Struct, frozen=True, kw_only=True):
    """A gradient, in the order in which the backward pass makes them."""

    bytes: int
    ready: float
    """Share of the backward pass that is over when it is ready."""


class LayerTime(msgspec.Struct, frozen=True, kw_only=True):
    """Passes of a layer by itself, on one rank alone; medians in seconds."""

    samples: int
    forward_s: float
    input_s: float
    """Seconds of the gradient of its inputs; 0 for a layer that needs none."""
    weight_s: float
    """Seconds of the gradients of its parameters."""
    input_half_s: float | None = None
    """The same where a pipeline computes each by itself, as schedule zero-bubble; None: alike."""
    weight_half_s: float | None = None


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of the chain that a pipeline cuts."""

    name: str
    parameter_bytes: int
    output_bytes: int
    """Bytes per sample that go to the next layer; as many of the gradient come back."""
    saved_bytes: int
    """Bytes per sample that its forward pass keeps for its backward pass."""
    times: list[LayerTime]
    """Times for growing numbers of samples."""


class ProgramCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a model part by part, as `parallel.program_costs` measures them."""

    gradients: list[Gradient] = []
    """Empty: gradients are taken to come evenly over the backward pass."""
    saved_bytes: int = 0
    """Bytes per sample that the forward pass keeps for the backward pass, layer by layer or
    not; 0: not known."""
    layers: list[Layer] = []
    """Layers in the order of the forward pass; empty: a pipeline cannot cut the program."""
    no_layers: str | None = None
    """The reason for that, with the module's name."""
    units: dict[str, list[ParameterSpec]] = {}
    """Parameters that ZeRO gathers together, by module; "" has those of no other."""
    no_units: str | None = None
    """The reason why ZeRO cannot shard them."""
    split: SplitTraffic | None = None
    """Messages of tensor parallelism; None: it cannot split the program."""
    no_split: str | None = None


class ProgramProfile(ProgramCosts, frozen=True, kw_only=True):
    """A program on one machine, as far as a plan needs it."""

    program: str
    model: str
    commit: str | None
    processor: str
    hostname: str
    cores: int
    threads: int
    """Compute threads of a rank."""
    parameters: int
    itemsize: int
    state_bytes: int
    """Parameters, gradients and state of the optimizer of a rank alone."""
    peak_memory_bytes: int
    global_batch: int
    micro_batches: int | None = None
    """Micro-batches of a global batch, as the program asks for them; None: one per rank."""
    train_samples: int
    sample_bytes: float = 0.0
    """Bytes of a sample in the files of a pack; 0: the data are not of a pack."""
    epochs: int = 1
    """Epochs that the program makes; 1 where it does not say."""
    times: list[StepTimes]
    startup_s: float
    """Seconds of a start, of as many at once as were measured."""
    evaluation_s: float | None = None
    sequence: int = 1
    """Targets of a sample."""
    checkpoint_s: float | None = None
    """Seconds that training waits for a checkpoint; a thread writes on beside it."""
    sums: list[SumTime] = []
    """Sums at this program's sizes, measured on this machine."""
    message_sums: list[SumTime] = []
    """The same by messages within this machine: processor seconds of whoever carries them."""
    message_overhead_s: float | None = None
    """Seconds that a message of ranks that wait asleep takes beside the latency of its link."""
    core_share: float = 1.0
    """Part of the time that a thread had a core, between the runs of the calibration."""
    call_s: float | None = None
    """Seconds of `core_probe.call_s`, between the runs of the calibration; None: not measured."""
    memory_bytes_per_s: float | None = None
    """Rate of this machine's memory, all ranks at once, on a working set beyond its caches."""

    @property
    def gradient_bytes(self) -> int:
        return self.parameters * self.itemsize

    @property
    def pace(self) -> float:
        """Return how much longer calls take than where the costs of the engine were found."""
        return 1.0 if self.call_s is None else self.call_s / CALL_S

    @property
    def quantities(self) -> int:
        """Return how many values the optimizer keeps for each trained one."""
        return max(0, round(self.state_bytes / max(1, self.gradient_bytes)) - 2)

    def samples_of_rank(self, parts: int) -> int:
        """Return the samples of the rank that has most, where `parts` ranks divide a batch."""
        number = self.micro_batches or parts
        return math.ceil(math.ceil(number / parts) * self.global_batch / number)

    def disturbance(self) -> float:
        """Return by how much steps may have been disturbed, as a share."""
        return max(self.unsteadiness(), 1 - self.core_share)

    def unsteadiness(self) -> float:
        """Return by how much equal steps differ over the time of their measurement, as a share:
        half of the 90 % range of the medians of the halves of all runs."""
        widest = 0.0
        for times in self.times:
            halves = sorted(
                statistics.median(half)
                for steps in times.step_s
                for half in (steps[: len(steps) // 2], steps[len(steps) // 2 :])
                if half
            )
            low, high = (halves[round(share * (len(halves) - 1))] for share in (0.05, 0.95))
            widest = max(widest, (high - low) / 2 / times.median_s)
        return widest

    def most_at_once(self) -> int:
        return max(each.at_once for each in self.times)


_ITEMSIZES: Mapping[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def read_profile(folder: Path) -> ProgramProfile:
    """Return the profile that `folder` holds, or that of the recorded run of one rank in it.

    Raises: UserError for a run of several ranks, or one of too few steps.
    """
    path = folder / PROFILE
    if not path.is_file():
        return profile_of_runs({1: [folder]})
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProgramProfile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def write_profile(folder: Path, profile: ProgramProfile) -> None:
    """Write the profile into `folder`."""
    write_atomically(folder / PROFILE, msgspec.json.format(msgspec.json.encode(profile)))


def profile_of_runs(
    runs: Mapping[int, Sequence[Path]], *, global_batch: int | None = None, program: str = ""
) -> ProgramProfile:
    """Return the profile of records. runs: folders of runs of one rank, by how many ran at once; of
    each number those of several batch sizes may be there.

    global_batch: of the training to be planned; None: that of the first run.
    Raises: UserError, as `read_profile`.
    """
    read = {number: [_OneRank.read(path) for path in paths] for number, paths in runs.items()}
    first = next(iter(read.values()))[0]
    setting, environment, started = first.run.setting, first.run.environment, first.started
    micro_batches = setting.options.get("micro_batches")
    itemsize = _ITEMSIZES.get(setting.dtype, 4)
    memory = first.memory
    state = 0 if memory is None else memory.parameters_bytes + memory.optimizer_bytes
    state += 0 if memory is None else memory.gradients_bytes
    return ProgramProfile(
        program=program or f"{setting.model} on {setting.dataset}, {setting.optimizer}",
        model=setting.model,
        commit=environment.commit,
        processor=environment.processor,
        hostname=environment.hostname,
        cores=environment.cores,
        threads=setting.threads,
        parameters=started.parameters,
        itemsize=itemsize,
        state_bytes=state,
        peak_memory_bytes=first.peak_memory_bytes,
        global_batch=global_batch or setting.global_batch_size,
        micro_batches=None if micro_batches is None else int(micro_batches),
        train_samples=started.train_samples,
        epochs=1 if setting.epochs == sys.maxsize else setting.epochs,
        times=[
            _together(number, some)
            for number, ranks in sorted(read.items())
            for some in _by_samples(ranks)
        ],
        startup_s=statistics.median(each.started.startup_s for each in read[max(read)]),
        evaluation_s=first.evaluation_s,
        checkpoint_s=first.checkpoint_s,
        sequence=started.targets_per_sample,
    )


class _OneRank(msgspec.Struct, frozen=True, kw_only=True):
    """The records of a run of one rank."""

    run: Run
    started: StartedEvent
    steps: list[StepEvent]
    memory: MemoryEvent | None
    evaluation_s: float | None
    checkpoint_s: float | None
    peak_memory_bytes: int

    @classmethod
    def read(cls, folder: Path) -> _OneRank:
        run = read_run(folder)
        if run.setting.ranks != 1:
            raise UserError(
                f"{folder} is a run on {run.setting.ranks} ranks, whose steps hold what these "
                "exchange: name a run of one rank, as of phalanx train --strategy sequential"
            )
        events = list(read_events(folder / "rank-0.jsonl"))
        started = next((e for e in events if isinstance(e, StartedEvent)), None)
        steps = [e for e in events if isinstance(e, StepEvent)]
        if started is None or len(steps) < FEWEST_STEPS:
            raise UserError(
                f"{folder} has records of {len(steps)} steps, and a profile needs "
                f"{FEWEST_STEPS} or more: train for longer"
            )
        finished = next((e for e in events if isinstance(e, FinishedEvent)), None)
        evaluations = [e.evaluation_s for e in events if isinstance(e, EvaluationEvent)]
        checkpoints = [e.save_s for e in events if isinstance(e, SavedEvent)]
        return cls(
            run=run,
            started=started,
            steps=steps,
            memory=next((e for e in events if isinstance(e, MemoryEvent)), None),
            evaluation_s=statistics.median(evaluations) if evaluations else None,
            checkpoint_s=statistics.median(checkpoints) if checkpoints else None,
            peak_memory_bytes=finished.peak_memory_bytes if finished else 0,
        )

    @property
    def samples(self) -> int:
        """Samples of a full step."""
        return max(step.samples for step in self.steps)

    def settled(self) -> list[tuple[StepEvent, float]]:
        """Return the steps that count, with the time since the end of the one before: full ones of
        one epoch; where epochs are too short for that, with the sum of their parts."""
        full = [step for step in self.steps if step.samples == self.samples]
        pairs = zip(self.steps, self.steps[1:], strict=False)
        found = [
            (step, step.at_s - before.at_s)
            for before, step in pairs
            if step.epoch == before.epoch and step.samples == self.samples
        ]
        if len(found) < min(FEWEST_STEPS, len(full)) // 2:
            found = [
                (e, e.data_s + e.forward_s + e.backward_s + e.communication_s + e.optimizer_s)
                for e in full
            ]
        return found[int(WARM_UP * len(found)) :]


def _by_samples(ranks: Iterable[_OneRank]) -> list[list[_OneRank]]:
    """Return runs of the same batch size together."""
    groups: dict[int, list[_OneRank]] = {}
    for rank in ranks:
        groups.setdefault(rank.samples, []).append(rank)
    return [groups[samples] for samples in sorted(groups)]


def _together(at_once: int, ranks: Sequence[_OneRank]) -> StepTimes:
    settled = [rank.settled() for rank in ranks]
    steps = [step for rank in settled for step, _ in rank]
    return StepTimes(
        at_once=at_once,
        samples=ranks[0].samples,
        peak_bytes=max(rank.peak_memory_bytes for rank in ranks),
        step_s=[[round(seconds, 7) for _, seconds in rank] for rank in settled],
        data_s=statistics.median(step.data_s for step in steps),
        forward_s=statistics.median(step.forward_s for step in steps),
        backward_s=statistics.median(step.backward_s for step in steps),
        optimizer_s=statistics.median(step.optimizer_s for step in steps),
    )
