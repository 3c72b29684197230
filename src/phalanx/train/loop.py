"""The training loop, common to all strategies and models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from phalanx.data.sampler import num_batches
from phalanx.data.sources.source import LoadedBatch, Source
from phalanx.parallel.step import Batch
from phalanx.parallel.strategy import Strategy
from phalanx.records.divergence import recorded_loss
from phalanx.records.files import EventWriter
from phalanx.records.processor_time import ProcessorTime
from phalanx.records.schema import ActionEvent, EpochEvent, MemoryEvent, NoticeEvent, SkippedEvent
from phalanx.records.totals import RankTotals, counted
from phalanx.train.accuracy import CorrectCounter
from phalanx.train.evaluation import evaluate
from phalanx.train.memory import resident_bytes
from phalanx.train.schedule import LRSchedule, step_at
from phalanx.train.step_record import step_record

MEASURED_STEP = 2
"""The step after which memory is measured: by then every buffer has been made."""


@dataclass(frozen=True, kw_only=True)
class TrainingContext:
    """Everything that a rank holds while it trains."""

    strategy: Strategy
    schedule: LRSchedule
    source: Source
    global_batch_size: int
    seed: int
    writer: EventWriter
    began_at: float  # time.perf_counter() that events count from
    delay_s: float = 0.0  # by which every step of this rank is made slower
    resident_before: int | None = None  # bytes of the process before the model was made
    first_epoch: int = 0  # more than 0 in a resumed run
    first_sample: int = 0  # of that epoch, more than 0 where it resumes within it
    checkpoint_steps: int | None = None  # after how many steps of an epoch `save` is called
    save: Callable[[int, int], None] | None = None
    """Writes a checkpoint within an epoch: (epoch, samples of it that all ranks have seen)."""

    @property
    def steps(self) -> int:
        """Number of steps of a full epoch."""
        return num_batches(self.source.num_train, self.global_batch_size)

    def seen_before(self, epoch: int) -> int:
        """Samples of `epoch` that another run has seen."""
        return self.first_sample if epoch == self.first_epoch else 0

    def first_step(self, epoch: int) -> int:
        """The number in the run of the first step that this run makes in `epoch`."""
        return step_at(
            (epoch, self.seen_before(epoch)),
            num_train=self.source.num_train,
            global_batch_size=self.global_batch_size,
        )

    @property
    def measured_step(self) -> int:
        """Step after which memory is measured."""
        return self.first_step(self.first_epoch) + MEASURED_STEP


def run_epoch(context: TrainingContext, epoch: int) -> RankTotals:
    """Train on every sample once, or on those that are left, and evaluate. Collective; the ranks
    start and end together."""
    strategy = context.strategy
    communicated_before, traffic_before = strategy.communicated_bytes, strategy.group.traffic()
    staleness_before = strategy.staleness()
    strategy.group.barrier()
    began, used_before = time.perf_counter(), ProcessorTime.now()
    counts = train_epoch(context, epoch)
    strategy.group.barrier()
    ended, used = time.perf_counter(), ProcessorTime.now().since(used_before)
    sent, received = _difference(strategy.group.traffic(), traffic_before)
    context.writer.add(
        EpochEvent(
            at_s=ended - context.began_at,
            epoch=epoch,
            train_s=ended - began,
            samples=counts.samples,
            loss_sum=counts.loss_sum,
            correct=counts.correct.total() if strategy.loss.counts_correct else None,
            communicated_bytes=strategy.communicated_bytes - communicated_before,
            sent_bytes=sent,
            received_bytes=received,
            staleness=dict(strategy.staleness() - staleness_before),
            first_sample=context.seen_before(epoch),
            damaged=counts.damaged,
            user_s=used.user_s,
            system_s=used.system_s,
        )
    )
    evaluation = evaluate(strategy, context.source, epoch, began_at=context.began_at)
    context.writer.add(evaluation)
    return RankTotals(
        train_s=ended - began,
        communication_s=counts.communication_s,
        samples=counts.samples,
        loss_sum=counts.loss_sum,
        correct=counted(counts.correct.total() if strategy.loss.counts_correct else None),
        targets=counts.samples * context.source.shape.targets_per_sample,
        validation_targets=evaluation.samples * context.source.shape.targets_per_sample,
        validation_loss_sum=evaluation.loss_sum,
        validation_correct=counted(evaluation.correct),
        steps=counts.steps,
        damaged=counts.damaged,
        skipped=counts.skipped,
    )


@dataclass
class EpochCounts:
    """One rank's epoch."""

    samples: int = 0
    loss_sum: float = 0.0
    correct: CorrectCounter = field(default_factory=CorrectCounter)
    communication_s: float = 0.0
    steps: int = 0
    damaged: int = 0
    skipped: int = 0


def train_epoch(context: TrainingContext, epoch: int) -> EpochCounts:
    """Make one update for each global batch of the epoch that is left, in segments between
    checkpoints: after each the ranks have the same parameters."""
    strategy, counts = context.strategy, EpochCounts()
    batches: Iterator[LoadedBatch] = iter(())
    if strategy.role == "worker":
        batches = context.source.train_batches(
            seed=context.seed,
            epoch=epoch,
            global_batch_size=context.global_batch_size,
            rank=strategy.data_rank,
            num_ranks=strategy.data_size,
            first_sample=context.seen_before(epoch),
        )
    for segment in epoch_segments(context, epoch):
        if strategy.role == "server":
            _serve(context, segment)
        else:
            make_steps(context, batches, epoch, segment, counts)
        strategy.finish_epoch()
        strategy.synchronize_buffers()
        if context.save is not None and segment.stop < (epoch + 1) * context.steps:
            made = segment.stop - context.first_step(epoch)
            context.save(epoch, context.seen_before(epoch) + made * context.global_batch_size)
    return counts


def epoch_segments(context: TrainingContext, epoch: int) -> Iterator[range]:
    """Yield the steps that are left of an epoch, divided where a checkpoint is due."""
    start, end = context.first_step(epoch), (epoch + 1) * context.steps
    period = context.checkpoint_steps or context.steps
    while start < end:
        stop = min(end, start + period - (start - epoch * context.steps) % period)
        yield range(start, stop)
        start = stop


def _serve(context: TrainingContext, segment: range) -> None:
    context.strategy.serve(len(segment))
    if context.measured_step in segment:
        context.writer.add(_memory(context))


def make_steps(
    context: TrainingContext,
    batches: Iterator[LoadedBatch],
    epoch: int,
    segment: range,
    counts: EpochCounts,
) -> None:
    """Make and record the steps of `segment`, and count them into `counts`.

    Between two steps the caches are the last one's: what is looked at here costs many times what it
    would in a loop of its own. So a record is made when it is written, and nothing is asked twice.
    """
    strategy, writer, clock = context.strategy, context.writer, time.perf_counter
    measured_step = context.measured_step
    ended = clock()
    for step in segment:
        began = ended
        loaded = next(batches)
        batch = batch_of(context, loaded, step)
        if context.delay_s:
            time.sleep(context.delay_s)
        loaded_at = clock()
        set_learning_rate(context, step)
        result = strategy.step(batch)
        ended = clock()
        samples, loss_sum = 0, 0.0
        if result.is_skipped:
            at_s, reason = ended - context.began_at, result.why_skipped
            writer.note(SkippedEvent(at_s=at_s, epoch=epoch, step=step, reason=reason))
            counts.skipped += 1
        elif strategy.counts_samples:
            samples, loss_sum = batch.num_samples, recorded_loss(result.loss_sum)
            counts.samples += samples
            counts.loss_sum += loss_sum
            if result.logits is not None:
                counts.correct.add(result.logits, loaded.targets)
        if loaded.num_damaged and strategy.counts_samples:
            counts.damaged += loaded.num_damaged
        counts.communication_s += result.communication_s
        # Without the logits, which would stay in memory until the record is written.
        seconds = (began, loaded_at, ended, *result[2:])
        writer.note((step_record, context.began_at, epoch, step, samples, loss_sum, *seconds))
        for action in strategy.actions():
            writer.note(ActionEvent(at_s=ended - context.began_at, **action._asdict()))
        if ended >= writer.due_at:
            writer.flush()
        if step == measured_step:
            writer.add(_memory(context))
            ended = clock()
    counts.steps += len(segment)


def set_learning_rate(context: TrainingContext, step: int) -> None:
    """Set the learning rate of update number `step`."""
    rate = context.schedule.at(step)
    for group in context.strategy.optimizer.param_groups:
        group["lr"] = rate


def batch_of(context: TrainingContext, loaded: LoadedBatch, step: int) -> Batch:
    """Return the batch for the strategy. Where samples may be damaged the ranks agree on the number
    of valid ones, over which the loss is the mean: collective, some 20 µs."""
    global_size = loaded.global_size
    if context.source.skips_damaged:
        global_size = max(1, global_size - _sum_over_ranks(context.strategy, loaded.num_damaged))
    targets = global_size * context.source.shape.targets_per_sample
    return Batch(loaded.inputs, loaded.targets, loaded.num_samples, targets, step)


def _sum_over_ranks(strategy: Strategy, number: int) -> int:
    """Return the sum over the ranks, counting ranks with the same samples once."""
    rows = strategy.group.gather([number if strategy.counts_samples else 0])
    return int(strategy.group.share("" if rows is None else str(int(sum(row[0] for row in rows)))))


def log_notices(context: TrainingContext) -> None:
    """Write the source's notices into the records and, on rank 0, into the log."""
    for text in context.source.notices():
        context.writer.add(NoticeEvent(at_s=time.perf_counter() - context.began_at, text=text))
        if context.strategy.rank == 0:
            print(text, flush=True)


def _memory(context: TrainingContext) -> MemoryEvent:
    state = context.strategy.state_bytes()
    now = resident_bytes()
    known = now is not None and context.resident_before is not None
    return MemoryEvent(
        at_s=time.perf_counter() - context.began_at,
        parameters_bytes=state.parameters,
        gradients_bytes=state.gradients,
        optimizer_bytes=state.optimizer,
        resident_bytes=now - context.resident_before if known else None,  # type: ignore[operator]
    )


def _difference(
    after: tuple[int, int] | None, before: tuple[int, int] | None
) -> tuple[int | None, int | None]:
    if after is None:
        return None, None
    sent, received = before or (0, 0)
    return after[0] - sent, after[1] - received
