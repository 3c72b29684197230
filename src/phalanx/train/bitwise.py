"""Training whose bits do not depend on the number of ranks: micro-batch by micro-batch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from phalanx.comm.layout import share_of
from phalanx.data.sampler import num_batches
from phalanx.errors import UserError
from phalanx.gradients.norms import REMEDIES, REMEDIES_IN_PROGRAM
from phalanx.parallel.bitwise import Bitwise
from phalanx.parallel.step import Batch
from phalanx.records.events import EvaluationEvent
from phalanx.records.totals import RankTotals, counted
from phalanx.run.batch import MicroBatch
from phalanx.run.exact_sum import ExactSum, sum_over_ranks
from phalanx.run.feed import Feed
from phalanx.run.gradients import StepGradients
from phalanx.run.loop import Computation
from phalanx.run.micro_batches import cut_micro_batches
from phalanx.torch_backend.threads import naming_operations
from phalanx.train.accuracy import CorrectCounter, num_correct
from phalanx.train.config import TrainConfig
from phalanx.train.evaluation import evaluate
from phalanx.train.loop import Training, TrainingContext
from phalanx.train.strategy_options import BitwisePipelineOptions

SUMS = (
    *("samples", "loss_sum", "targets"),
    *("validation_targets", "validation_loss_sum", "validation_correct"),
)
"""Of the totals of rank 0, over all ranks."""


class ExactTraining(Training):
    """A bitwise training, whose sums over all ranks are known to each of them after every step and
    evaluation, so that none is lost with a rank."""

    _counted: Bitwise | None = None
    """Counts correct predictions over all ranks, where some may be lost."""

    def __init__(
        self,
        context: TrainingContext,
        feed: Feed | None = None,
        computation: Computation | None = None,
    ) -> None:
        """feed, computation: as of `Training`."""
        self._validated = [0.0, 0.0, 0.0]
        """Samples, loss and correct predictions of all ranks in the last evaluation."""
        super().__init__(context, feed, computation)

    def totals(self) -> RankTotals:
        """Return the counts of the last epoch; rank 0's are sums over all ranks."""
        context, counts = self._context, self.loop.recorder.counts
        strategy, targets = context.strategy, context.source.shape.targets_per_sample
        correct = counted(counts.correct)
        if self._counted is not None and counts.correct is not None:
            correct = counts.summed_correct
        samples, validation_loss, validation_correct = self._validated
        totals = RankTotals(
            train_s=counts.train_s,
            communication_s=counts.communication_s,
            samples=counts.summed_samples,
            loss_sum=counts.summed_loss,
            correct=correct,
            targets=counts.summed_samples * targets,
            validation_targets=samples * targets,
            validation_loss_sum=validation_loss,
            validation_correct=validation_correct,
            steps=counts.steps,
            skipped=counts.skipped,
        )
        if strategy.rank == 0:
            return totals
        nothing = dict.fromkeys(SUMS, 0.0)
        return replace(totals, **nothing, correct=correct if self._counted is None else 0.0)

    def _evaluate(self, epoch: int) -> EvaluationEvent:
        """Evaluate together with those who are left, from the beginning after a loss."""
        context, events = self._context, list[EvaluationEvent]()
        group = context.strategy.group

        def over_all_ranks() -> list[float]:
            losses = ExactSum()
            own = evaluate(
                context.strategy, context.source, epoch, began_at=context.began_at, losses=losses
            )
            events.append(own)
            samples, correct = group.sum([own.samples, counted(own.correct)])
            return [samples, *sum_over_ranks(group, [losses]), correct]

        self._validated = group.together(over_all_ranks)
        return events[-1]

    def _count_sums(self, samples: int) -> None:
        """Count a step over all ranks. samples: of the global batch."""
        summed, counts = self._context.strategy.summed, self.loop.recorder.counts
        assert summed is not None, "by the strategy"
        counts.summed_loss += self._context.source.shape.targets_per_sample * summed.loss
        counts.summed_samples += samples
        counts.summed_correct += round(summed.correct)


class BitwiseTraining(ExactTraining):
    """A training by the strategy `Bitwise`, as programs have it: each micro-batch of a fixed cut
    has random numbers and a gradient of its own."""

    def __init__(self, context: TrainingContext) -> None:
        strategy = context.strategy
        self._gradients = StepGradients(strategy, {"": strategy.optimizer}, seed=context.seed)
        if isinstance(strategy, Bitwise) and strategy.numbers is not None:
            self._counted = strategy
        super().__init__(context, MicroBatchFeed(context), self._gradients)

    def train_epoch(self) -> None:
        context, loop, gradients = self._context, self.loop, self._gradients
        correct, waiting = CorrectCounter(), list[tuple[Tensor, Tensor]]()
        targets_per_sample = context.source.shape.targets_per_sample
        for micro_batch in loop.epoch():
            for group in context.strategy.optimizer.param_groups:
                group["lr"] = context.schedule.at(micro_batch.step)
            with naming_operations():
                logits = self._compute(micro_batch)
            if logits is not None and micro_batch.num_samples:
                waiting.append((logits, micro_batch.data.targets))
            if not micro_batch.ends_step:
                continue
            if context.strategy.missing:
                loop.extend_step()
                continue
            try:
                result = gradients.apply(micro_batch)
            except UserError as error:
                raise UserError(str(error).replace(REMEDIES_IN_PROGRAM, REMEDIES)) from error
            if not result.is_skipped:
                self._count_sums(micro_batch.global_samples)
                for pair in waiting:
                    correct.add(*pair)
            waiting.clear()
            result = result._replace(loss_sum=targets_per_sample * result.loss_sum)
            loop.end_step(result, gradients.num_samples)
            if micro_batch.ends_epoch and context.strategy.loss.counts_correct:
                loop.recorder.counts.correct = correct.total()

    def _compute(self, micro_batch: MicroBatch) -> Tensor | None:
        """Compute the gradient of a micro-batch, and return its logits."""
        context, batch = self._context, micro_batch.data
        outputs, loss = context.strategy.forward(batch)
        num_targets = max(1, batch.num_samples) * context.source.shape.targets_per_sample
        logits = context.strategy.loss.logits(outputs)
        if self._counted is not None and logits is not None and batch.num_samples:
            own = logits.detach()[: len(batch.targets)]
            self._counted.note_correct(num_correct(own, batch.targets))
        self._gradients.add(micro_batch, loss / num_targets, None, None)
        return logits


class BitwisePipelineTraining(ExactTraining):
    """A training by the strategy `BitwisePipeline`, which takes global batches as a whole."""

    def train_epoch(self) -> None:
        context, loop, correct = self._context, self.loop, CorrectCounter()
        strategy = context.strategy
        for micro_batch in loop.epoch():
            batch: Batch = micro_batch.data
            for group in strategy.optimizer.param_groups:
                group["lr"] = context.schedule.at(batch.step)
            with naming_operations():
                result = strategy.step(batch)
            if not result.is_skipped:
                self._count_sums(micro_batch.global_samples)
                if result.logits is not None:
                    correct.add(result.logits, batch.targets)
            loop.end_step(result, batch.num_samples)
            if micro_batch.ends_epoch and strategy.loss.counts_correct:
                loop.recorder.counts.correct = correct.total()


def make_training(config: TrainConfig, context: TrainingContext) -> Training:
    """Return the training of the options, which fits their strategy."""
    if not config.bitwise:
        return Training(context)
    if isinstance(config.strategy_options, BitwisePipelineOptions):
        return BitwisePipelineTraining(context)
    return BitwiseTraining(context)


class MicroBatchFeed:
    """Micro-batches of a source: of every global batch those that a rank computes."""

    num_damaged = 0

    def __init__(
        self,
        context: TrainingContext,
        numbers: Sequence[int] | None = None,
        first: Sequence[int] | None = None,
    ) -> None:
        """numbers: of the micro-batches of a global batch; None: consecutive ones, by the rank.
        first: those of the first step alone; None: as all others."""
        self.num_samples: int | None = context.source.num_train
        self._num_train, self._context = context.source.num_train, context
        self._numbers, self._first = numbers, first

    def of(self, numbers: Sequence[int], first: Sequence[int] | None = None) -> MicroBatchFeed:
        """Return a feed of the micro-batches of each global batch that have these numbers."""
        return MicroBatchFeed(self._context, numbers, first)

    def micro_batches(
        self, epoch: int, *, seen: int, step: int, max_steps: int
    ) -> Iterator[MicroBatch]:
        strategy, batch_size = self._context.strategy, self._context.global_batch_size
        assert strategy.num_blocks is not None, "of the strategy"
        own = self._numbers
        if own is None:
            own = share_of(strategy.rank, strategy.size, strategy.num_blocks)
        last = step + min(max_steps, num_batches(self._num_train - seen, batch_size)) - 1
        if self._first is not None:
            yield from self._of_steps(range(step, step + 1), epoch, seen, last, self._first)
            step, seen = step + 1, seen + batch_size
        yield from self._of_steps(range(step, last + 1), epoch, seen, last, own)

    def _of_steps(
        self, steps: range, epoch: int, seen: int, last: int, own: Sequence[int]
    ) -> Iterator[MicroBatch]:
        """Yield the micro-batches `own` of each step. last: step that ends the epoch."""
        if not steps:
            return
        context, strategy = self._context, self._context.strategy
        number = strategy.num_blocks
        assert number is not None, "of the strategy"
        batches = context.source.train_batches(
            seed=context.seed,
            epoch=epoch,
            global_batch_size=context.global_batch_size,
            first_sample=seen,
            rank=strategy.rank,
            num_ranks=strategy.size,
            micro_batches=number,
            own=own,
        )
        for current, loaded in zip(steps, batches, strict=False):
            if context.delay_s:
                time.sleep(context.delay_s * len(own) * strategy.size / number)
            slices = cut_micro_batches(loaded.global_size, number=number, own=own)
            stop = 0
            for piece in slices:
                start, stop = stop, stop + piece.stop - piece.start
                # Copies: the bits of some operations depend on how their memory is aligned.
                inputs = loaded.inputs[start:stop].clone()
                targets = loaded.targets[start:stop].clone()
                num_samples = 0 if piece.is_padding else len(targets)
                ends_step = piece is slices[-1]
                yield MicroBatch(
                    Batch(inputs, targets, num_samples, 0, current),
                    num_samples,
                    epoch,
                    current,
                    piece.number,
                    ends_step,
                    ends_step and current == last,
                    loaded.global_size,
                )
