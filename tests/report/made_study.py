"""Makes result folders with plausible numbers, the same every time, through phalanx.records."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from phalanx.records.events import EpochEvent, EvaluationEvent, Event, StepEvent
from phalanx.records.files import rank_file
from phalanx.records.schema import Outcome, Run
from tests.report import made_events
from tests.report.made_events import FINISHED, RUN, set_otherwise, started, write_run, write_study

CORES = 2
TRAIN_SAMPLES = 12_000
VALIDATION_SAMPLES = 10_000
COMPLETED = Outcome(status="completed")


@dataclass(frozen=True)
class Model:
    images_per_s: float  # one thread
    parameters: int
    error: float  # 1 - accuracy that it tends to
    threads_help: float  # of 2 threads over 1


MODELS = {
    "mlp": Model(58_000, 235_146, 0.021, 1.15),
    "cnn": Model(4_100, 421_642, 0.009, 1.7),
    "rnn": Model(5_200, 82_186, 0.016, 1.35),
}


@dataclass(frozen=True)
class Job:
    """One run to make."""

    model: str
    strategy: str
    ranks: int = 1
    threads: int = 1
    batch_size: int = 128
    seed: int = 0
    epochs: int = 5
    outcome: Outcome = COMPLETED

    @property
    def name(self) -> str:
        width = f"t{self.threads}" if self.strategy == "sequential" else f"r{self.ranks}"
        return f"{self.model}-{self.strategy}-{width}-b{self.batch_size}-s{self.seed}"


def scaling_jobs(models: Sequence[str] = ("mlp", "cnn", "rnn"), seed: int = 0) -> list[Job]:
    """The plan of `phalanx study scaling` on a machine with two cores."""
    jobs = []
    for model in models:
        jobs += [Job(model, "sequential", threads=threads, seed=seed) for threads in (1, 2)]
        jobs += [Job(model, "mpi", ranks=ranks, seed=seed) for ranks in (1, 2, 4)]
        jobs += [Job(model, "gloo", ranks=ranks, seed=seed) for ranks in (1, 2, 4)]
    return jobs


def full_study(folder: Path) -> Path:
    """A finished study: three models, a sweep of batch sizes, and three seeds of the MLP."""
    jobs = scaling_jobs()
    jobs += [job for seed in (1, 2) for job in scaling_jobs(["mlp"], seed)]
    for size in (32, 512, 2048):
        jobs += [Job("mlp", "sequential", batch_size=size), Job("mlp", "mpi", 2, 1, size)]
    return make_study(folder, jobs)


def troubled_study(folder: Path) -> Path:
    """A study with a failed run, an interrupted one, one cut in a line and one not yet run."""
    error = "RuntimeError: </script><script>window.broken = true</script><b>lost</b> & gone"
    jobs = [
        Job("mlp", "sequential"),
        Job("mlp", "mpi", ranks=1),
        Job("mlp", "mpi", ranks=2),
        Job("mlp", "mpi", ranks=3, outcome=Outcome(status="failed", error=error, rank=2)),
        Job("mlp", "gloo", ranks=2, outcome=Outcome(status="interrupted")),
    ]
    make_study(folder, jobs, also_planned=["mlp-gloo-r4-b128-s0"])
    cut_last_line(rank_file(folder / "mlp-gloo-r2-b128-s0", 1))
    return folder


def make_study(folder: Path, jobs: Sequence[Job], also_planned: Sequence[str] = ()) -> Path:
    command = "phalanx study scaling --models mlp,cnn,rnn --epochs 5"
    write_study(folder, "scaling", [*(job.name for job in jobs), *also_planned], command=command)
    for job in jobs:
        make_run(folder / job.name, job, folder.name)
    return folder


def make_run(folder: Path, job: Job, study: str = "alone") -> Path:
    return write_run(
        folder, run_of(job, study), (events_of(job, rank) for rank in range(job.ranks))
    )


def cut_last_line(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-20])


def run_of(job: Job, study: str) -> Run:
    run = replace(
        RUN,
        study=study,
        run=job.name,
        command=f"phalanx train --model {job.model} --strategy {job.strategy} --seed {job.seed}",
        outcome=job.outcome,
    )
    return set_otherwise(
        run,
        model=job.model,
        strategy=job.strategy,
        ranks=job.ranks,
        threads=job.threads,
        global_batch_size=job.batch_size,
        epochs=job.epochs,
        seed=job.seed,
    )


def events_of(job: Job, rank: int) -> Iterator[Event]:
    noise = random.Random(f"{job.name} {rank}")
    samples = share(TRAIN_SAMPLES, job.ranks, rank)
    yield started(
        rank,
        threads=job.threads,
        parameters=MODELS[job.model].parameters,
        train_samples=TRAIN_SAMPLES,
        validation_samples=VALIDATION_SAMPLES,
        collective=None if job.strategy == "sequential" else "shared",
    )
    yield evaluation(job, rank, -1)
    whole = job.outcome.status == "completed"
    for epoch in range(job.epochs if whole else 2):
        steps = [step_of(job, noise, epoch, n) for n in range(steps_an_epoch(job))]
        yield from steps
        yield epoch_event(job, rank, epoch, samples, steps)
        yield evaluation(job, rank, epoch)
    if whole:
        yield FINISHED


def step_of(job: Job, noise: random.Random, epoch: int, number: int) -> StepEvent:
    model = MODELS[job.model]
    batch = job.batch_size / job.ranks
    crowding = max(1.0, job.ranks * job.threads / CORES)
    speed = model.images_per_s * (model.threads_help if job.threads > 1 else 1.0)
    compute_s = (batch / speed + 2e-4) * crowding * noise.uniform(0.97, 1.06)
    waiting = {"sequential": 0.0, "mpi": 1.0, "gloo": 2.6}[job.strategy]
    communication_s = waiting * (job.ranks - 1) * crowding**1.5 * model.parameters * 6e-10
    return made_events.step(
        epoch * steps_an_epoch(job) + number,
        epoch=epoch,
        samples=round(batch),
        loss_sum=batch * train_loss(job, epoch),
        data_s=0.05 * compute_s,
        forward_s=0.3 * compute_s,
        backward_s=0.5 * compute_s,
        communication_s=communication_s * noise.uniform(0.9, 1.2),
        optimizer_s=0.15 * compute_s,
    )


def epoch_event(
    job: Job, rank: int, epoch: int, samples: int, steps: Sequence[StepEvent]
) -> EpochEvent:
    noise = random.Random(f"{job.name} {rank} {epoch}")
    steps_s = sum(
        s.data_s + s.forward_s + s.backward_s + s.communication_s + s.optimizer_s for s in steps
    )
    warm_up = 1.15 if epoch == 0 else 1.0
    return made_events.epoch(
        epoch,
        at_s=10.0 * (epoch + 1),
        train_s=steps_s * warm_up,
        samples=samples,
        loss_sum=samples * train_loss(job, epoch) * noise.uniform(0.97, 1.03),
        correct=round(samples * (1 - final_error(job, epoch) * noise.uniform(0.9, 1.3))),
        communicated_bytes=MODELS[job.model].parameters * 4 * len(steps),
    )


def evaluation(job: Job, rank: int, epoch: int) -> EvaluationEvent:
    samples = share(VALIDATION_SAMPLES, job.ranks, rank)
    noise = random.Random(f"{job.model} {job.seed} {job.batch_size} {epoch}").uniform(0.95, 1.05)
    error = 0.9 if epoch < 0 else final_error(job, epoch) * noise
    loss = 2.31 if epoch < 0 else 3.3 * error * noise
    return made_events.evaluation(
        epoch,
        at_s=10.0 * (epoch + 1) + 1,
        evaluation_s=0.2,
        samples=samples,
        loss_sum=samples * loss,
        correct=round(samples * (1 - error)),
    )


def steps_an_epoch(job: Job) -> int:
    return math.ceil(TRAIN_SAMPLES / job.batch_size)


def final_error(job: Job, epoch: int) -> float:
    slow = math.log2(max(job.batch_size / 128, 0.5)) * 0.25
    return MODELS[job.model].error * (1 + 2.2 * math.exp(-epoch * 0.9) + slow)


def train_loss(job: Job, epoch: int) -> float:
    return 3.0 * final_error(job, epoch) * math.exp(-0.15 * epoch)


def share(samples: int, ranks: int, rank: int) -> int:
    """Uneven when `ranks` does not divide `samples`: the first ranks have one more."""
    return samples // ranks + (rank < samples % ranks)
