"""Training whose bits do not depend on the number of ranks: micro-batch by micro-batch."""

from __future__ import annotations

import time
from collections.abc import Iterator

from torch import Tensor

from phalanx.data.sampler import num_batches
from phalanx.errors import UserError
from phalanx.gradients.norms import REMEDIES, REMEDIES_IN_PROGRAM
from phalanx.parallel.step import Batch
from phalanx.run.batch import MicroBatch
from phalanx.run.gradients import StepGradients
from phalanx.run.micro_batches import micro_batches_of_rank
from phalanx.torch_backend.threads import naming_operations
from phalanx.train.accuracy import CorrectCounter
from phalanx.train.loop import Training, TrainingContext


class BitwiseTraining(Training):
    """A training by the strategy `Bitwise`, as programs have it: each micro-batch of a fixed cut
    has random numbers and a gradient of its own."""

    def __init__(self, context: TrainingContext) -> None:
        strategy = context.strategy
        self._gradients = StepGradients(strategy, {"": strategy.optimizer}, seed=context.seed)
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
            try:
                result = gradients.apply(micro_batch)
            except UserError as error:
                raise UserError(str(error).replace(REMEDIES_IN_PROGRAM, REMEDIES)) from error
            summed = context.strategy.summed
            assert summed is not None, "by the strategy"
            if not result.is_skipped:
                loop.recorder.counts.summed_loss += targets_per_sample * summed.loss
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
        self._gradients.add(micro_batch, loss / num_targets, None, None)
        return context.strategy.loss.logits(outputs)


class MicroBatchFeed:
    """Micro-batches of a source: a rank's consecutive ones of every global batch."""

    num_damaged = 0

    def __init__(self, context: TrainingContext) -> None:
        self.num_samples: int | None = context.source.num_train
        self._num_train, self._context = context.source.num_train, context

    def micro_batches(
        self, epoch: int, *, seen: int, step: int, max_steps: int
    ) -> Iterator[MicroBatch]:
        context, strategy = self._context, self._context.strategy
        number, batch_size = strategy.num_blocks, context.global_batch_size
        assert number is not None, "of the strategy"
        place = {"rank": strategy.rank, "num_ranks": strategy.size}
        batches = context.source.train_batches(
            seed=context.seed,
            epoch=epoch,
            global_batch_size=batch_size,
            first_sample=seen,
            micro_batches=number,
            **place,
        )
        num_steps = min(max_steps, num_batches(self._num_train - seen, batch_size))
        for current, loaded in zip(range(step, step + num_steps), batches, strict=False):
            if context.delay_s:
                time.sleep(context.delay_s)
            slices = micro_batches_of_rank(loaded.global_size, number=number, **place)
            for piece in slices:
                rows = slice(piece.start - slices[0].start, piece.stop - slices[0].start)
                # Copies: the bits of some operations depend on how their memory is aligned.
                inputs, targets = loaded.inputs[rows].clone(), loaded.targets[rows].clone()
                num_samples = 0 if piece.is_padding else len(targets)
                ends_step = piece is slices[-1]
                yield MicroBatch(
                    Batch(inputs, targets, num_samples, 0, current),
                    num_samples,
                    epoch,
                    current,
                    piece.number,
                    ends_step,
                    ends_step and current == step + num_steps - 1,
                    loaded.global_size,
                )
