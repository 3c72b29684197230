"""Records of a run, which `phalanx report` draws: one file per rank, one line per event.

Training does not need them: `train.py` would do the same without. `phalanx launch` names the
folder; under `mpiexec` alone only the table of epochs is printed.
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from costs import expected_costs
from network import Result

from phalanx.comm.traffic import TrafficCounter
from phalanx.jobs import record, relayed
from phalanx.jobs.binding import pool_threads
from phalanx.jobs.cores import usable_cores
from phalanx.records import events, files, schema, totals
from phalanx.records.divergence import loss_text
from phalanx.records.environment import process_age_s
from phalanx.records.processor_time import ProcessorTime, peak_memory_bytes

RUN_DIR = "PHALANX_RUN_DIR"
HEADER = "  epoch    loss   train  validation   images/s  waiting  seconds"


@dataclass
class EpochSums:
    """Sums over the samples that this rank reports."""

    samples: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    communication_s: float = 0.0

    def add(self, result: Result, communication_s: float) -> None:
        self.samples += len(result.losses)
        self.loss_sum += float(result.losses.sum())
        self.correct += int(np.count_nonzero(result.hits))
        self.communication_s += communication_s


class RunRecords:
    """Records of one rank, and on rank 0 the table of epochs."""

    def __init__(self, options: Any, world: Any, training: Any, choice: Any) -> None:
        """Collective. options: those of `train.py`; choice: the data set chosen."""
        self.options, self.world, self.training = options, world, training
        self.began_at = time.perf_counter() - process_age_s()
        self.traffic = world.group.traffic = TrafficCounter()
        self.trained_s = 0.0
        self.writer: files.EventWriter | None = None
        self.folder = Path(os.environ[RUN_DIR]) if RUN_DIR in os.environ else None
        nodes = sum(world.exchange(int(world.local_rank == 0)))
        if self.folder is not None:
            if world.rank == 0:
                record.begin_record(self.folder, self._run(self.folder, nodes, choice.name))
            world.barrier("the folder of the records")
            # A node that lacks it has one in its place, whose files the launcher collects.
            here = relayed.local_folder(self.folder) or self.folder
            self.writer = files.EventWriter(files.rank_file(here, world.rank))
        if world.rank == 0:
            print(f"{choice.reason}\n{title(options, choice.name, world.size)}\n{HEADER}")
        self.add(self._started())
        self.flush()

    def add(self, event: events.Event) -> None:
        if self.writer is not None:
            self.writer.add(event)

    def flush(self) -> None:
        """Write the buffered events."""
        if self.writer is not None:
            self.writer.flush()

    def at_s(self) -> float:
        """Return the seconds since this rank began."""
        return time.perf_counter() - self.began_at

    def step(
        self, epoch: int, step: int, result: Result, seconds: dict[str, float], ended: float
    ) -> None:
        """Record an update. ended: `time.perf_counter()` at its end."""
        event = events.StepEvent(
            at_s=ended - self.began_at,
            epoch=epoch,
            step=step,
            samples=len(result.losses),
            loss_sum=float(result.losses.sum()),
            **seconds,
        )
        self.add(event)

    def run_epoch(self, epoch: int) -> None:
        """Train on every sample once and evaluate. Collective; all begin and end together."""
        before = self.traffic.snapshot()
        self.world.barrier("epoch's beginning")
        began, used_before = time.perf_counter(), ProcessorTime.now()
        sums = self.training.run_epoch(epoch, self)
        self.world.barrier("epoch's end")
        train_s, used = time.perf_counter() - began, ProcessorTime.now().since(used_before)
        moved = self.traffic - before
        payload = sum(each.bytes for name, each in moved.payload.items() if name != "receive")
        self.add(
            events.EpochEvent(
                at_s=self.at_s(),
                epoch=epoch,
                train_s=train_s,
                samples=sums.samples,
                loss_sum=sums.loss_sum,
                correct=sums.correct,
                communicated_bytes=payload,
                sent_bytes=moved.sent_bytes,
                received_bytes=moved.received_bytes,
                user_s=used.user_s,
                system_s=used.system_s,
            )
        )
        began = time.perf_counter()
        found = self.training.evaluate()
        self.add(
            events.EvaluationEvent(
                at_s=self.at_s(),
                epoch=epoch,
                evaluation_s=time.perf_counter() - began,
                samples=found.samples,
                loss_sum=found.loss_sum,
                correct=found.correct,
            )
        )
        self._summarize(epoch, train_s, sums, found)

    def _summarize(self, epoch: int, train_s: float, sums: EpochSums, found: EpochSums) -> None:
        """Record and print an epoch's sums over all ranks, on rank 0."""
        mine = totals.RankTotals(
            train_s=train_s,
            communication_s=sums.communication_s,
            correct=sums.correct,
            targets=sums.samples,
        )
        own = [*mine, sums.loss_sum, found.samples, found.loss_sum, found.correct]
        rows = self.world.gather(np.array(own))
        if rows is not None:
            ranks = [totals.RankTotals(*row) for row in rows[:, :-4].tolist()]
            loss_sum, number, found_sum, correct = rows[:, -4:].sum(0).tolist()
            samples = round(sum(rank.targets for rank in ranks))
            summary = totals.summarize(
                ranks,
                totals.Validation(
                    samples=round(number),
                    loss=found_sum / number,
                    accuracy=correct / number,
                    correct=round(correct),
                    seconds=0.0,
                ),
                epoch=epoch,
                samples=samples,
                train_loss=loss_sum / samples,
                trained_s=self.trained_s,
                at_s=self.at_s(),
            )
            self.trained_s = summary.trained_s
            self.add(summary)
            print(table_row(summary, self.options.epochs))
        self.flush()

    def finish(self) -> None:
        """Record the end of all ranks, and a digest of the parameters. Collective."""
        parameters = self.training.scheme.full_parameters()
        digest = hashlib.sha256(parameters.data).hexdigest()
        peak = peak_memory_bytes()
        at_s = self.at_s()
        self.add(events.FinishedEvent(at_s=at_s, parameters_sha256=digest, peak_memory_bytes=peak))
        if self.writer is not None:
            self.writer.close()
        self.world.barrier("run's end")
        if self.folder is not None and self.world.rank == 0:
            record.end_record(self.folder, schema.Run, schema.Outcome(status="completed"))

    def _run(self, folder: Path, nodes: int, dataset: str) -> schema.Run:
        options = self.options
        setting = schema.Setting(
            model="network",
            dataset=dataset,
            strategy=options.scheme,
            ranks=self.world.size,
            threads=num_threads(),
            global_batch_size=options.batch_size,
            epochs=options.epochs,
            learning_rate=options.lr,
            learning_rate_rule="none",
            optimizer="sgd",
            seed=options.seed,
            dtype=options.dtype,
            nodes=nodes,
            options={
                "hidden": " ".join(map(str, options.hidden)),
                "activation": options.activation,
                "momentum": options.momentum,
                **({"servers": options.num_servers} if options.num_servers else {}),
            },
        )
        return schema.Run(
            study="scratch",
            run=folder.name,
            config=vars(options),
            setting=setting,
            **record.opening_fields(record.job_command(os.environ), self.world.library),
        )

    def _started(self) -> events.StartedEvent:
        options, train = self.options, self.training.train
        batch_size = min(options.batch_size, len(train))
        expected = expected_costs(options, self.world.rank, self.world.size, batch_size)
        return events.StartedEvent(
            at_s=self.at_s(),
            rank=self.world.rank,
            hostname=socket.gethostname(),
            process_id=os.getpid(),
            local_rank=self.world.local_rank,
            threads=num_threads(),
            startup_s=self.at_s(),
            parameters=sum((n + 1) * m for n, m in zip(options.sizes, options.sizes[1:])),  # noqa: B905
            train_samples=len(train),
            validation_samples=len(self.training.validation),
            role=self.training.scheme.role,
            expected=expected,
        )


def num_threads() -> int:
    """Return the compute threads of this rank, as its launcher or user has set them."""
    return pool_threads(os.environ) or usable_cores()


def title(options: Any, dataset: str, ranks: int) -> str:
    """Return a line that describes the training."""
    servers = f", {options.num_servers} of them servers" if options.num_servers else ""
    return (
        f"{' → '.join(map(str, options.sizes))} ({options.activation}) on {dataset}: "
        f"{options.scheme}, {ranks} rank{'s' * (ranks > 1)}{servers}, batch {options.batch_size}, "
        f"learning rate {options.lr:g}, momentum {options.momentum:g}"
    )


def table_row(summary: events.SummaryEvent, epochs: int) -> str:
    """Return an epoch as a line of the table under HEADER."""
    return (
        f"{f'{summary.epoch + 1}/{epochs}':>7} {loss_text(summary.train_loss):>7} "
        f"{summary.train_accuracy:7.2%} {summary.validation_accuracy:11.2%} "
        f"{summary.images_per_s:10,.0f} {summary.communication_share:8.1%} "
        f"{summary.epoch_s:8.2f}"
    )
