"""One rank's records of a run: a line a step and an epoch, sums over its own samples; and their way
to rank 0's folder, where its node lacks that."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import socket
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from msgspec import structs
from torch import Tensor

from phalanx.comm.traffic import TrafficCounter
from phalanx.jobs import relayed
from phalanx.jobs.collector import Files
from phalanx.jobs.frames import Frame
from phalanx.parallel.places import Admission
from phalanx.parallel.replicas import Replicas
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.step import StepResult
from phalanx.parallel.strategy import Strategy
from phalanx.records.divergence import recorded_loss
from phalanx.records.events import (
    Certificate,
    EpochEvent,
    Event,
    ExpectedCosts,
    FinishedEvent,
    MemoryEvent,
    MetricsEvent,
    RecoveredEvent,
    ReplacedEvent,
    SkippedEvent,
    StartedEvent,
    StepEvent,
    StoppedEvent,
)
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.processor_time import ProcessorTime
from phalanx.records.spans import spans_file
from phalanx.run.batch import MicroBatch
from phalanx.run.certificate import ModelDigests
from phalanx.run.fault_injector import FaultInjector
from phalanx.run.memory import resident_bytes
from phalanx.run.options import RunDescription
from phalanx.run.watching import ProgramWatch

if TYPE_CHECKING:
    from phalanx.run.profiling import ProgramProbe


class GatheredRecords:
    """This rank's part in gathering the records of one run on rank 0, while ranks communicate.

    Used for ranks that the user's launcher started; from Phalanx's launchers records arrive with
    the output (`jobs/relay.py`), also when ranks fail.
    """

    def __init__(self, group: RunGroup, folder: Path, absent: list[int]) -> None:
        """absent: ranks that do not see rank 0's `folder`."""
        self._group, self._folder, self._absent = group, folder, absent
        self._rank = group.rank  # rank before losses
        self._sent: dict[Path, int] = {}
        self._files = Files(folder)

    @classmethod
    def begin(cls, group: RunGroup, folder: Path) -> Self:
        """Find out which ranks do not see what rank 0 has made. Collective."""
        if not group.sum([float(group.node)])[0]:  # all on the first node
            return cls(group, folder, [])
        name = f".here-{secrets.token_hex(8)}" if group.rank == 0 else ""
        path = folder / group.share(name)
        if group.rank == 0:
            path.touch()
        group.barrier()
        seen = [0.0] * group.size
        seen[group.rank] = float(path.exists() or relayed.local_folder(folder) is not None)
        seen = group.sum(seen)
        if group.rank == 0:
            path.unlink(missing_ok=True)
        return cls(group, folder, [rank for rank, sees in enumerate(seen) if not sees])

    def tell_where(self) -> None:
        """Print where the records of a rank that fails are, if rank 0's folder lacks their end. Not
        collective."""
        rank = self._rank
        if rank in self._absent:
            here = f"{socket.gethostname()}:{self._folder.absolute()}"
            with contextlib.suppress(OSError, ValueError):
                print(f"phalanx: rank {rank} keeps its records in {here}", file=sys.stderr)

    def bring(self) -> None:
        """Append what the ranks have written since the last call to the files in rank 0's folder.
        Collective; nothing is sent where all ranks see the folder."""
        if not self._absent:
            return
        parts, data = [], b""
        group = self._group
        if self._rank in self._absent:
            for path in (rank_file(self._folder, self._rank), spans_file(self._folder, self._rank)):
                new = self._new(path)
                if new:
                    parts.append((path.name, self._sent[path] - len(new), len(new)))
                    data += new
        own = json.dumps(parts).encode() + b"\n" + data
        group.together(lambda: self._gather(zlib.compress(own, 1)))

    def _gather(self, own: bytes) -> None:
        """Write on rank 0 what each rank sends, one after the other. Made again after a loss, it
        leaves out what is there."""
        with self._group.uncounted():
            for text in self._group.gather_bytes(own):
                head, _, content = zlib.decompress(text).partition(b"\n")
                with contextlib.suppress(OSError):  # a full disk ends no training
                    for name, offset, size in json.loads(head):
                        chunk, content = content[:size], content[size:]
                        self._files.take(Frame(0, name, 0, offset, chunk, True))
                    self._files.flush()

    def _new(self, path: Path) -> bytes:
        """Return what a file of this rank has got since the last call."""
        if not path.exists():
            return b""
        with path.open("rb") as file:
            file.seek(self._sent.setdefault(path, 0))
            new = file.read()
        self._sent[path] += len(new)
        return new


@dataclass
class EpochCounts:
    """One rank's epoch so far."""

    samples: int = 0
    loss_sum: float = 0.0
    summed_loss: float = 0.0
    summed_samples: int = 0
    """The same over all ranks, also of the epoch's part before a checkpoint."""
    trained_samples: int = 0
    """Samples over all ranks of the steps that were made."""
    is_summed: tuple[float, int] = (0.0, 0)
    """Loss and samples of this rank in these sums, where the strategy does not sum losses."""
    right: CorrectCounter | None = None
    """Counts right predictions; None: not counted."""
    summed_correct: int = 0
    """Right predictions over all ranks, if ranks may be lost."""
    communication_s: float = 0.0
    steps: int = 0
    damaged: int = 0
    skipped: int = 0
    train_s: float = 0.0
    """Time from barrier to barrier; known at the epoch's end."""

    @property
    def correct(self) -> int | None:
        """Return the right predictions so far; None if they are not counted."""
        return None if self.right is None else self.right.total()


class RunRecorder:
    """Counts of a rank and, with a writer, the lines that it writes."""

    def __init__(
        self,
        strategy: Strategy,
        writer: EventWriter | None,
        *,
        described: RunDescription,
        began_at: float,
        counts_correct: bool,
    ) -> None:
        """writer: None writes nothing. began_at: `time.perf_counter()` that events count from.
        counts_correct: whether right predictions are counted."""
        self.writer, self.began_at = writer, began_at
        self.counts = EpochCounts()
        self.targets_per_sample, self._counts_correct = described.targets_per_sample, counts_correct
        self._strategy, self._described = strategy, described
        self._counts_samples = strategy.counts_samples
        self._epoch_began = began_at
        self._outputs: list[tuple[Tensor, Tensor]] = []
        self._digests: ModelDigests | None = None
        self._num_steps = 0  # updates made
        self._faults = FaultInjector(
            strategy.group,
            writer,
            began_at=began_at,
            num_steps=lambda: self._num_steps,
        )
        self._has_taken_over = False  # the first rank acts for all
        self.program: ProgramWatch | ProgramProbe | None = None
        """Watch of a check, which compares what several runs write, or of a profile."""
        self.gathered: GatheredRecords | None = None
        """Brings this rank's file to rank 0's folder after each epoch."""

    def start(
        self,
        *,
        num_parameters: int,
        train_samples: int,
        expected: ExpectedCosts | None,
        device: str,
    ) -> None:
        """Write the first line. num_parameters: of the whole model, of which this rank may hold a
        part. expected: of the strategy, where it knows the optimizer's rule. device: of this rank.
        """
        if self.writer is None:
            return
        strategy = self._strategy
        self.writer.add(
            StartedEvent(
                at_s=self.at_s(),
                rank=strategy.rank,
                hostname=socket.gethostname(),
                process_id=os.getpid(),
                local_rank=strategy.group.local_rank,
                threads=torch.get_num_threads(),
                startup_s=self.at_s(),
                parameters=num_parameters,
                train_samples=train_samples,
                validation_samples=self._described.validation_samples,
                targets_per_sample=self.targets_per_sample,
                collective=strategy.collective,
                role=strategy.role,
                coordinates=strategy.coordinates,
                device=device,
                expected=expected,
                time_s=time.time(),
            )
        )
        names = strategy.tensor_names
        if strategy.num_blocks is not None and (strategy.rank == 0 or names is not None):
            self._digests = ModelDigests(
                strategy.model,
                self.writer,
                at_s=self.at_s(),
                names=names,
                group=None if names is None else strategy.group,
            )
        self.writer.flush()

    def begin_faults(self) -> None:
        """Count the times of injected faults from now on, unless an epoch has begun before."""
        self._faults.begin()

    def arrive(self, step: int) -> None:
        """Go on after `step` updates that other ranks have made."""
        self._num_steps = step

    def begin_epoch(self) -> None:
        """Begin to count an epoch; after the barrier with which it begins."""
        self.begin_faults()
        strategy = self._strategy
        self.counts = EpochCounts(right=CorrectCounter() if self._counts_correct else None)
        self._bytes_before, traffic = strategy.communicated_bytes, strategy.group.traffic
        self._traffic_before = None if traffic is None else traffic.snapshot()
        self._link_times = link_times(traffic)
        self._staleness_before = strategy.staleness()
        self._epoch_began, self._used_before = time.perf_counter(), ProcessorTime.now()

    def sum_losses(self) -> None:
        """Bring the sums over the ranks up to date. Collective where the strategy does not sum
        losses in each step."""
        counts = self.counts
        if not (self._strategy.sums_gradients and self._strategy.is_in_lockstep):
            loss, samples = counts.is_summed
            own = [counts.loss_sum - loss, counts.samples - samples]
            loss_sum, num_samples = self._strategy.group.sum(own)
            counts.is_summed = counts.loss_sum, counts.samples
            counts.summed_loss += loss_sum
            counts.summed_samples += int(num_samples)

    def note_outputs(self, batch: MicroBatch, outputs: Any) -> None:
        """Note outputs of a micro-batch, whose right predictions count once its step is made."""
        strategy = self._strategy
        if self.counts.right is None or not (isinstance(outputs, Tensor) and batch.num_samples):
            return
        own = outputs.detach()[: len(batch.targets)]
        if isinstance(strategy, Replicas) and strategy.numbers is not None:
            strategy.reducer.note_loss(0.0, 0.0, num_correct(own, batch.targets))
        elif strategy.counts_samples:
            self._outputs.append((own, batch.targets))

    def count_step(self, batch: MicroBatch, result: StepResult) -> None:
        """Count a step over all ranks, and what is right of it. batch: its last micro-batch."""
        summed, counts = self._strategy.summed, self.counts
        outputs, self._outputs = self._outputs, []
        if result.is_skipped:
            return
        counts.trained_samples += batch.global_samples
        if summed is not None:
            counts.summed_loss += summed.loss / (summed.weight or 1) * batch.global_samples
            counts.summed_samples += batch.global_samples
            counts.summed_correct += round(summed.correct)
        if counts.right is not None:
            for own, targets in outputs:
                counts.right.add(own, targets)

    def end_step(
        self,
        epoch: int,
        step: int,
        result: StepResult,
        times: tuple[float, float, float],
        samples: int,
    ) -> None:
        """Record a step. Kept short: it runs between steps and must not evict the model from the
        caches.

        times: when it was begun, when its data were there, when it had ended. samples: of this
        rank.
        """
        counts, loss_sum = self.counts, 0.0
        counts.steps += 1
        self._num_steps = step + 1
        counts.communication_s += result.communication_s
        if result.is_skipped:
            counts.skipped += 1
            samples = 0
        elif self._counts_samples:
            loss_sum = recorded_loss(result.loss_sum)
            counts.samples += samples
            counts.loss_sum += loss_sum
        else:
            samples = 0
        if self.program is not None:
            self.program.end_step(step, result)
        writer = self.writer
        if writer is None:
            return
        at_s = times[2] - self.began_at
        if result.is_skipped:
            reason = result.why_skipped
            writer.note(SkippedEvent(at_s=at_s, epoch=epoch, step=step, reason=reason))
        # Made when it is written, and without the logits, which would stay in memory until then.
        writer.note(
            (
                *(step_record, self.began_at, epoch, step, samples),
                loss_sum * self.targets_per_sample,
                *(times, result[2:], self._times_since_last_step()),
            )
        )
        if self._has_taken_over:
            self._has_taken_over = False
            self._digests = ModelDigests(self._strategy.model, writer, at_s=at_s)
        if self._digests is not None:
            self._digests.add(step, at_s)
        for action in self._strategy.actions():
            writer.note(structs.replace(action, at_s=at_s))
        if times[2] >= writer.due_at:
            writer.flush()

    def end_epoch(self, epoch: int, *, first_sample: int) -> None:
        """Record the epoch; after the barrier with which it ends. first_sample: samples of it,
        over all ranks, of an earlier run."""
        ended, used = time.perf_counter(), ProcessorTime.now().since(self._used_before)
        counts, strategy = self.counts, self._strategy
        counts.train_s = ended - self._epoch_began
        if self.writer is None:
            return
        traffic, before = strategy.group.traffic, self._traffic_before
        moved = None if traffic is None or before is None else traffic - before
        self.writer.add(
            EpochEvent(
                at_s=ended - self.began_at,
                epoch=epoch,
                train_s=counts.train_s,
                samples=counts.samples,
                loss_sum=counts.loss_sum * self.targets_per_sample,
                correct=counts.correct,
                communicated_bytes=strategy.communicated_bytes - self._bytes_before,
                sent_bytes=None if moved is None else moved.sent_bytes,
                received_bytes=None if moved is None else moved.received_bytes,
                network_sent_bytes=None if moved is None else moved.network_sent_bytes,
                network_received_bytes=None if moved is None else moved.network_received_bytes,
                formula_bytes=None if moved is None else moved.formula_bytes,
                staleness=dict(strategy.staleness() - self._staleness_before),
                first_sample=first_sample,
                damaged=counts.damaged,
                user_s=used.user_s,
                system_s=used.system_s,
            )
        )
        if self.gathered is not None:
            self.writer.flush()
            self.gathered.bring()

    def add_memory(self) -> None:
        """Record the bytes of the state between two steps."""
        if self.writer is None:
            return
        state = self._strategy.state_bytes()
        now, before = resident_bytes(), self._described.resident_before
        self.writer.add(
            MemoryEvent(
                at_s=self.at_s(),
                parameters_bytes=state.parameters,
                gradients_bytes=state.gradients,
                optimizer_bytes=state.optimizer,
                resident_bytes=None if now is None or before is None else now - before,
            )
        )

    def add_metrics(self, epoch: int, step: int, metrics: dict[str, float]) -> None:
        """Record metrics of the program."""
        if self.program is not None:
            self.program.add_metrics(step, metrics)
        self.write(MetricsEvent(at_s=self.at_s(), epoch=epoch, step=step, metrics=metrics))

    def add_loss(self, step: int, lost: Sequence[int], recovery_s: float) -> None:
        """Record at once that ranks have died, and that this one continues. step: updates made."""
        strategy = self._strategy
        # Write at once, since from here on this rank may be the first.
        self.write(
            RecoveredEvent(at_s=self.at_s(), step=step, lost=list(lost), recovery_s=recovery_s),
            at_once=True,
        )
        is_first = strategy.rank == 0 and strategy.num_blocks is not None
        self._has_taken_over = is_first and self._digests is None

    def add_replaced(self, step: int, admission: Admission) -> None:
        """Record spares that have taken places. step: updates made."""
        if admission.joined:
            event = ReplacedEvent(
                at_s=self.at_s(),
                step=step,
                spares=list(admission.joined),
                lost=list(admission.lost),
                seconds=admission.seconds,
            )
            self.write(event, at_once=True)

    def stop(self, step: int) -> None:
        """Write the last line of a run that was stopped. step: updates made."""
        self._end(StoppedEvent(at_s=self.at_s(), step=step))

    def finish(self, parameters_sha256: str, certificate: Certificate | None = None) -> None:
        """Write the last line of a rank that came to the end. certificate: of a bitwise run."""
        self._end(
            FinishedEvent(
                at_s=self.at_s(),
                parameters_sha256=parameters_sha256,
                peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                certificate=certificate,
            )
        )

    def write(self, event: Event, *, at_once: bool = False) -> None:
        """Write an event, where records are written."""
        if self.writer is not None:
            self.writer.add(event)
            if at_once:
                self.writer.flush()

    def _end(self, event: Event) -> None:
        self._faults.cancel()
        self.write(event)
        if self.writer is not None:
            self.writer.close()

    def _times_since_last_step(self) -> tuple[float | None, float | None]:
        """Return the seconds of exchanges on the node and between nodes since it was last called;
        None where they were not measured: the MPI library does not say when it sends where."""
        before = self._link_times
        self._link_times = now = link_times(self._strategy.group.traffic)
        if before is None or now is None or now[2] > before[2]:
            return None, None
        return now[0] - before[0], now[1] - before[1]

    def epoch_s(self) -> float:
        """Seconds since the epoch began."""
        return time.perf_counter() - self._epoch_began

    def at_s(self) -> float:
        """Seconds since the rank began."""
        return time.perf_counter() - self.began_at


def link_times(traffic: TrafficCounter | None) -> tuple[float, float, int] | None:
    """Return the seconds of exchanges on the node and between nodes so far, and the bytes of those
    whose time was not measured."""
    if traffic is None:
        return None
    return traffic.node_s, traffic.network_s, traffic.formula_bytes


def step_record(
    origin: float,
    epoch: int,
    step: int,
    samples: int,
    loss_sum: float,
    times: tuple[float, float, float],
    spent: tuple[float, float, float, float | None, float | None, str, float | None],
    link_times: tuple[float | None, float | None],
) -> StepEvent:
    """Return the record of a step, from what the loop has noted of it. Pure.

    origin: what `at_s` counts from. times: when the step before ended, the data were there, and the
    step ended; all on one clock. spent: `StepResult` without loss and logits. link_times: of
    exchanges on the node, and between nodes.
    """
    began, loaded_at, ended = times
    forward_s, backward_s, communication_s, hidden_s, last_bucket_s, why_skipped, grad_norm = spent
    timed_s = forward_s + backward_s + communication_s
    return StepEvent(
        at_s=ended - origin,
        epoch=epoch,
        step=step,
        samples=samples,
        loss_sum=loss_sum,
        data_s=loaded_at - began,
        forward_s=forward_s,
        backward_s=backward_s,
        communication_s=communication_s,
        optimizer_s=max(0.0, ended - loaded_at - timed_s),
        hidden_s=hidden_s,
        last_bucket_s=last_bucket_s,
        is_skipped=bool(why_skipped),
        node_s=link_times[0],
        network_s=link_times[1],
        grad_norm=grad_norm,
    )


LARGE = 2**15
"""Logits of a step that are compared while they are in the cache; to store them would take memory
that has not been touched before, which costs more than comparing."""
MAX_LOGITS = 2**18
"""Most logits of small steps that are kept and compared together, which is faster than one by
one."""


class CorrectCounter:
    """Counter of correct predictions. An ignored target is never correct."""

    def __init__(self) -> None:
        self._total, self._waiting = 0, 0
        self._logits: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """logits: (m, …, classes), of which the first n count; targets: (n, …)."""
        if logits.requires_grad:
            logits = logits.detach()
        if logits.shape[0] != targets.shape[0]:
            logits = logits[: targets.shape[0]]
        number = logits.numel()
        if number >= LARGE:
            self._total += num_correct(logits, targets)
            return
        self._logits.append(logits)
        self._targets.append(targets)
        self._waiting += number
        if self._waiting >= MAX_LOGITS:
            self._count()

    def total(self) -> int:
        self._count()
        return self._total

    def _count(self) -> None:
        if not self._logits:
            return
        self._total += num_correct(torch.cat(self._logits), torch.cat(self._targets))
        self._logits.clear()
        self._targets.clear()
        self._waiting = 0


def num_correct(logits: Tensor, targets: Tensor) -> int:
    """Return how many targets have the largest logit, of equal ones the first.

    logits: (n, …, classes); targets: (n, …).
    """
    # Not `argmax`: it takes twice as long.
    return int((logits.max(-1).indices == targets).sum())
