"""The training loop: the same for every scheme, which is asked for its five verbs in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.traffic import TrafficCounter
from phalanx.records.events import EpochEvent, EvaluationEvent, StepEvent
from phalanx.records.files import EventWriter
from phalanx.records.processor_time import ProcessorTime
from phalanx.records.totals import RankTotals, counted
from phalanx.scratch.batches import batches, epoch_order, num_batches
from phalanx.scratch.images import Samples
from phalanx.scratch.schemes.scheme import Scheme
from phalanx.scratch.world import WorldProtocol

EVALUATION_BATCH_SIZE = 1000


@dataclass(frozen=True, kw_only=True)
class LoopContext:
    """State of a rank's training loop."""

    scheme: Scheme
    world: WorldProtocol
    train: Samples
    validation: Samples
    batch_size: int  # global
    seed: int
    writer: EventWriter
    began_at: float  # time.perf_counter() that events count from
    traffic: TrafficCounter = field(
        default_factory=TrafficCounter
    )  # counts what this rank sends and receives


class PhaseTimer:
    """Times the parts of a step, one after the other."""

    def __init__(self, began: float, scheme: Scheme) -> None:
        """began: `time.perf_counter()` at which the first part began."""
        self._scheme, self.ended = scheme, began
        self._waited_before = self._waited = scheme.waited_s

    @property
    def waited_s(self) -> float:
        """Seconds of waiting for peers so far."""
        return self._waited - self._waited_before

    def next(self) -> float:
        """Return the seconds since the last call, without waiting for peers."""
        began, waited = self.ended, self._waited
        self.ended, self._waited = time.perf_counter(), self._scheme.waited_s
        return self.ended - began - (self._waited - waited)


def payload_bytes(moved: TrafficCounter) -> int:
    """Return the bytes of buffers that this rank sent or passed to collectives."""
    return sum(count.bytes for name, count in moved.payload.items() if name != "receive")


@dataclass
class EpochSums:
    """Counts of this rank in an epoch."""

    samples: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    communication_s: float = 0.0

    def add(self, step: StepEvent, correct: int) -> None:
        self.samples += step.samples
        self.loss_sum += step.loss_sum
        self.correct += correct
        self.communication_s += step.communication_s


def run_epoch(context: LoopContext, epoch: int) -> RankTotals:
    """Train on every sample once and evaluate. Collective; the ranks start and end together."""
    before = context.traffic.snapshot()
    context.world.barrier("epoch's beginning")
    began, used_before = time.perf_counter(), ProcessorTime.now()
    counts = train_epoch(context, epoch)
    context.world.barrier("epoch's end")
    ended, used = time.perf_counter(), ProcessorTime.now().since(used_before)
    moved = context.traffic - before
    context.writer.add(
        EpochEvent(
            at_s=ended - context.began_at,
            epoch=epoch,
            train_s=ended - began,
            samples=counts.samples,
            loss_sum=counts.loss_sum,
            correct=counts.correct,
            communicated_bytes=payload_bytes(moved),
            sent_bytes=moved.sent_bytes,
            received_bytes=moved.received_bytes,
            user_s=used.user_s,
            system_s=used.system_s,
        )
    )
    evaluation = evaluate(context, epoch)
    context.writer.add(evaluation)
    return RankTotals(
        train_s=ended - began,
        communication_s=counts.communication_s,
        samples=counts.samples,
        loss_sum=counts.loss_sum,
        correct=counts.correct,
        targets=counts.samples,
        validation_targets=evaluation.samples,
        validation_loss_sum=evaluation.loss_sum,
        validation_correct=counted(evaluation.correct),
    )


def train_epoch(context: LoopContext, epoch: int) -> EpochSums:
    """Make one update for each global batch of the epoch."""
    order = epoch_order(len(context.train), seed=context.seed, epoch=epoch)
    step = epoch * num_batches(len(order), context.batch_size)
    counts = EpochSums()
    ready_at = time.perf_counter()
    for batch in batches(len(order), context.batch_size):
        indices = order[batch.start : batch.stop]
        event, correct, ready_at = train_step(context, indices, epoch, step, ready_at)
        context.writer.add(event)
        counts.add(event, correct)
        step += 1
    return counts


def train_step(
    context: LoopContext, batch: NDArray[np.int64], epoch: int, step: int, began: float
) -> tuple[StepEvent, int, float]:
    """Make one optimizer step, on the mean loss over the global batch.

    batch: (n,) the samples of the global batch.
    began: `time.perf_counter()` at which the previous step ended.
    Returns: the record, this rank's hits, and when the step ended.
    """
    scheme, laps = context.scheme, PhaseTimer(began, context.scheme)
    mine = scheme.local_batch(range(len(batch)))
    inputs, labels = context.train.take(batch[mine.start : mine.stop])
    data_s = laps.next()
    result = scheme.forward(inputs, labels).part(scheme.reported(range(len(batch))))
    forward_s = laps.next()
    scheme.backward(len(batch))
    backward_s = laps.next()
    scheme.combine()
    combine_s = laps.next()
    scheme.update()
    optimizer_s = laps.next()
    scheme.distribute()
    distribute_s = laps.next()
    event = StepEvent(
        at_s=laps.ended - context.began_at,
        epoch=epoch,
        step=step,
        samples=len(result.losses),
        loss_sum=result.loss_sum,
        data_s=data_s,
        forward_s=forward_s,
        backward_s=backward_s,
        communication_s=laps.waited_s + combine_s + distribute_s,
        optimizer_s=optimizer_s,
    )
    return event, result.correct, laps.ended


def evaluate(context: LoopContext, epoch: int) -> EvaluationEvent:
    """This rank's part of the validation samples, each of which one rank reports."""
    began = time.perf_counter()
    samples, loss_sum, correct = 0, 0.0, 0
    for batch in batches(len(context.validation), EVALUATION_BATCH_SIZE):
        mine = context.scheme.local_batch(batch)
        inputs, labels = context.validation.take(np.arange(mine.start, mine.stop))
        result = context.scheme.forward(inputs, labels).part(context.scheme.reported(batch))
        samples += len(result.losses)
        loss_sum += result.loss_sum
        correct += result.correct
    ended = time.perf_counter()
    return EvaluationEvent(
        at_s=ended - context.began_at,
        epoch=epoch,
        evaluation_s=ended - began,
        samples=samples,
        loss_sum=loss_sum,
        correct=correct,
    )
