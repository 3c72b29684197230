"""Training of built-in models and of users' own: the loop of `run`, whose steps strategies make."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx.comm.recovery import Recovery
from phalanx.data.sampler import num_batches
from phalanx.data.sources.source import LoadedBatch, Source
from phalanx.parallel.step import Batch
from phalanx.parallel.strategy import Strategy
from phalanx.records.events import EvaluationEvent, NoticeEvent
from phalanx.records.files import EventWriter
from phalanx.records.totals import RankTotals, counted
from phalanx.run.batch import MicroBatch
from phalanx.run.exact_sum import ExactSum
from phalanx.run.feed import Feed
from phalanx.run.loop import Computation, LoopOptions, Position, TrainingLoop
from phalanx.run.randomness import seed_micro_batch
from phalanx.run.recording import RunRecorder
from phalanx.run.spares import SparePlaces
from phalanx.run.stop import Copies
from phalanx.train.accuracy import CorrectCounter
from phalanx.train.evaluation import evaluate
from phalanx.train.schedule import LRSchedule, step_at


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
    epochs: int = sys.maxsize  # after which the run ends
    delay_s: float = 0.0  # by which every step of this rank is made slower
    rebalances: bool = False  # slow ranks are given fewer micro-batches
    resident_before: int | None = None  # bytes of the process before the model was made
    first_epoch: int = 0  # more than 0 in a resumed run
    first_sample: int = 0  # of that epoch, more than 0 where it resumes within it
    checkpoint_steps: int | None = None  # after how many steps of an epoch `save` is called
    checkpoint_seconds: float | None = None  # time after which it is called as well
    save: Callable[[int, int], None] | None = None
    """Writes a checkpoint within an epoch: (epoch, samples of it that all ranks have seen)."""
    poll: Callable[[], bool] | None = None
    """Returns whether a checkpoint is still being written."""
    copies: Copies | None = None
    """Of checkpoints, in memory."""
    seeds_steps: bool = False
    """Whether PyTorch's generators are seeded anew for each step: a user's model may draw."""

    @property
    def start(self) -> Position:
        """Position from which this run goes on."""
        step = step_at(
            (self.first_epoch, self.first_sample),
            num_train=self.source.num_train,
            global_batch_size=self.global_batch_size,
        )
        return Position(epoch=self.first_epoch, seen=self.first_sample, step=step)


class Training:
    """A training of built-in models on one rank, epoch by epoch."""

    def __init__(
        self,
        context: TrainingContext,
        feed: Feed | None = None,
        computation: Computation | None = None,
    ) -> None:
        """feed: None for that of the context's source. computation: of its micro-batches; None:
        the strategy makes whole steps."""
        self._context = context
        recorder = RunRecorder(
            context.strategy,
            context.writer,
            began_at=context.began_at,
            resident_before=context.resident_before,
            counts_correct=context.strategy.loss.counts_correct,
        )
        save = context.save
        options = LoopOptions(
            batch_size=context.global_batch_size,
            epochs=context.epochs,
            start=context.start,
            checkpoint_steps=context.checkpoint_steps,
            checkpoint_seconds=context.checkpoint_seconds,
            save=None if save is None else lambda at: save(at.epoch, at.seen),
            poll=context.poll,
            copies=context.copies,
            rebalances=context.rebalances,
        )
        feed = feed or SourceFeed(context)
        self.loop = TrainingLoop(context.strategy, feed, recorder, options, computation)
        self.loop.places = SparePlaces.of(self.loop, context.strategy, None)
        self._evaluation: EvaluationEvent | None = None
        group = context.strategy.group
        self._lost_before = group.lost, group.recovery_s  # while the run was prepared
        group.follow(self._record_loss)

    def run_epoch(self) -> RankTotals:
        """Train on every sample once, or on those that are left, and evaluate; return `totals`.
        Collective; the ranks start and end together."""
        self.train_epoch()
        self._evaluation = self._evaluate(self.loop.position.epoch - 1)
        self._context.writer.add(self._evaluation)
        return self.totals()

    def totals(self) -> RankTotals:
        """Return this rank's counts of the last epoch; those of all ranks add up."""
        counts, evaluation = self.loop.recorder.counts, self._evaluation
        targets = self._context.source.shape.targets_per_sample
        assert evaluation is not None, "run_epoch() comes first"
        return RankTotals(
            train_s=counts.train_s,
            communication_s=counts.communication_s,
            samples=counts.samples,
            loss_sum=counts.loss_sum,
            correct=counted(counts.correct),
            targets=counts.samples * targets,
            validation_targets=evaluation.samples * targets,
            validation_loss_sum=evaluation.loss_sum,
            validation_correct=counted(evaluation.correct),
            steps=counts.steps,
            damaged=counts.damaged,
            skipped=counts.skipped,
        )

    def _evaluate(self, epoch: int) -> EvaluationEvent:
        context = self._context
        return evaluate(
            context.strategy, context.source, epoch, began_at=context.began_at, losses=ExactSum()
        )

    def train_epoch(self) -> None:
        """Make one update for each global batch of the epoch that is left."""
        context, loop, correct = self._context, self.loop, CorrectCounter()
        strategy = context.strategy
        counts_correct = strategy.counts_samples and strategy.loss.counts_correct
        optimizer = strategy.optimizer if strategy.role == "worker" else None
        for micro_batch in loop.epoch():
            assert optimizer is not None, "servers see no samples"
            batch: Batch = micro_batch.data
            rate = context.schedule.at(batch.step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            if context.seeds_steps:
                seed_micro_batch(context.seed, batch.step, strategy.data_rank)
            result = strategy.step(batch)
            loop.end_step(result, batch.num_samples)
            if counts_correct and result.logits is not None and not result.is_skipped:
                correct.add(result.logits, batch.targets)
            if micro_batch.ends_epoch and strategy.loss.counts_correct:
                loop.recorder.counts.correct = correct.total()

    def record_losses_before(self) -> None:
        """Record the ranks that were lost before the loop was made."""
        lost, recovery_s = self._lost_before
        if lost:
            self.loop.recorder.add_loss(self.loop.position.step, lost, recovery_s)

    def _record_loss(self, recovery: Recovery) -> None:
        recorder, step = self.loop.recorder, self.loop.position.step
        recorder.add_loss(step, recovery.lost, recovery.seconds)


class SourceFeed:
    """Batches of a source, one a step on each rank."""

    def __init__(self, context: TrainingContext) -> None:
        self._num_train = context.source.num_train
        self.num_samples: int | None = self._num_train
        self.num_damaged = 0
        self._context = context

    def micro_batches(
        self, epoch: int, *, seen: int, step: int, max_steps: int
    ) -> Iterator[MicroBatch]:
        context, strategy = self._context, self._context.strategy
        batch_size, self.num_damaged = context.global_batch_size, 0
        batches = context.source.train_batches(
            seed=context.seed,
            epoch=epoch,
            global_batch_size=batch_size,
            rank=strategy.data_rank,
            num_ranks=strategy.data_size,
            first_sample=seen,
        )
        num_steps = min(max_steps, num_batches(self._num_train - seen, batch_size))
        for number, loaded in zip(range(step, step + num_steps), batches, strict=False):
            batch = batch_of(context, loaded, number)
            self.num_damaged += loaded.num_damaged
            if context.delay_s:
                time.sleep(context.delay_s)
            yield MicroBatch(
                batch,
                batch.num_samples,
                epoch,
                number,
                strategy.data_rank,
                ends_step=True,
                end=number == step + num_steps - 1,
                global_samples=loaded.global_size,
            )


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
