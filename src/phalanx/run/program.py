"""The loop of a program that trains: micro-batches out, gradients in."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.data.sampler import epoch_order, evaluation_shard, num_batches
from phalanx.errors import UserError
from phalanx.parallel.optimizer import rule_of
from phalanx.parallel.step import Batch, StepResult
from phalanx.parallel.strategy import Strategy
from phalanx.run.batch import MicroBatch
from phalanx.run.micro_batches import MicroBatchSlice, micro_batches_of_rank
from phalanx.run.randomness import seed_micro_batch
from phalanx.run.samples import IndexedSamples, samples_of

NOTHING = torch.empty(0)


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Options of a run that decide its numbers, the same on every rank."""

    batch_size: int
    micro_batches: int
    """Of a full global batch."""
    epochs: int
    steps: int | None
    """Updates after which the run ends, within the epochs; None: their number."""
    seed: int


class ProgramRun:
    """A training that a program makes, on one rank or many.

    Iterating yields the micro-batches that this rank computes; `backward` takes each one's loss.
    When the last micro-batch of a global batch is done, gradients are summed over the ranks,
    checked, clipped, and the optimizer steps. All ranks iterate to the end.

    Made by `phalanx.start`; ended by the end of its loop, by `with`, or by `close`.
    """

    def __init__(
        self,
        strategy: Strategy,
        optimizer: Optimizer,
        samples: IndexedSamples,
        options: LoopOptions,
        loading: dict[str, Any],
        leave: Callable[[], None],
    ) -> None:
        """strategy: prepared, with the program's model and optimizer. leave: called once it is
        closed."""
        self._strategy, self._group = strategy, strategy.group
        self._own_optimizer, self._samples, self._options = optimizer, samples, options
        self._rule = rule_of(optimizer)
        self._loading, self._leave = loading, leave
        self._current: MicroBatch | None = None
        self._until_backward = ExitStack()
        self._result = StepResult(0.0, None, 0.0, 0.0, 0.0)
        self._weight = 0.0
        self._has_own_weights: bool | None = None  # None: no micro-batch of the step has told
        self._global_samples = 0
        self._is_begun = self._is_closed = False

    @property
    def model(self) -> nn.Module:
        """Module to call in the loop; in `evaluate`, the function gets it."""
        return self._strategy.module

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self._strategy.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._strategy.size

    @property
    def is_main(self) -> bool:
        """Return whether this is rank 0."""
        return self.rank == 0

    def __iter__(self) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of every epoch, in order.

        Raises: UserError when `backward` was not called for the one before, and the second time.
        """
        if self._is_begun:
            raise UserError("a run is iterated once: start another for more epochs")
        self._is_begun = True
        options, step = self._options, 0
        total = options.epochs * num_batches(len(self._samples), options.batch_size)
        total = min(total, options.steps or total)
        self._group.barrier()
        for epoch in range(options.epochs):
            for batch in self._epoch(epoch, step, total):
                yield batch
                self._check_backward(batch)
                step = batch.step + batch.ends_step
            self._strategy.finish_epoch()
            self._strategy.synchronize_buffers()
            if step >= total:
                break
        self.close()

    def _epoch(self, epoch: int, step: int, total: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of an epoch, up to update number `total`."""
        options = self._options
        order = epoch_order(len(self._samples), options.seed, epoch)
        starts = range(0, len(order), options.batch_size)[: total - step]
        slices = [
            (start, piece)
            for start in starts
            for piece in self._slices(min(options.batch_size, len(order) - start))
        ]
        indices = [order[start + piece.start : start + piece.stop] for start, piece in slices]
        batches = self._samples.batches(indices)
        for position, ((start, piece), data) in enumerate(zip(slices, batches, strict=True)):
            is_last = position + 1 == len(slices)
            ends_step = is_last or slices[position + 1][0] != start
            batch = MicroBatch(
                data,
                0 if piece.is_padding else piece.stop - piece.start,
                epoch,
                step,
                piece.number,
                ends_step,
                is_last,
            )
            if self._current is None:  # the first of its step
                self._global_samples = min(options.batch_size, len(order) - start)
                self._begin_step()
            self._begin(batch)
            yield batch
            step += ends_step

    def _slices(self, num_samples: int) -> list[MicroBatchSlice]:
        return micro_batches_of_rank(
            num_samples,
            number=self._options.micro_batches,
            rank=self.rank,
            num_ranks=self.size,
        )

    def _begin_step(self) -> None:
        self._strategy.clear_gradients()
        self._result = StepResult(0.0, None, 0.0, 0.0, 0.0)
        self._weight, self._has_own_weights = 0.0, None

    def _begin(self, batch: MicroBatch) -> None:
        self._current, self._is_computed = batch, False
        if not batch.ends_step:
            self._until_backward.enter_context(self._strategy.no_sync())
        seed_micro_batch(self._options.seed, batch.step, batch.number)
        self._began = time.perf_counter()

    def backward(self, loss: Tensor, *, weight: float | None = None) -> None:
        """Add the gradient of `loss` to those of the global batch; with the last micro-batch, sum
        them over the ranks and make the optimizer's step. Collective then.

        loss: 0-dim, the mean over the micro-batch; its gradient counts by the number of samples.
        weight: by which it counts instead, e.g. tokens or atoms; given for every micro-batch or
            for none. The gradient is that of Σ weight · loss ÷ Σ weight over the global batch.

        Raises: UserError for a loss that is no scalar or has no graph, and when gradients are not
                finite, naming the step, the ranks and a parameter.
        """
        batch, called_at = self._current, time.perf_counter()
        if batch is None or self._is_computed:
            raise UserError("run.backward is called once for each micro-batch of the run's loop")
        _check_loss(loss)
        own = self._weight_of(batch, weight)
        global_weight = 1 if weight is not None else self._global_samples
        factor = own * self._strategy.loss_weight(self._batch(batch, global_weight))
        result, value = self._result, loss.item()
        hidden_s, last_bucket_s, exposed_s = None, None, 0.0
        if batch.ends_step:
            exposed_s, hidden_s, last_bucket_s = self._strategy.backward_and_reduce(loss, factor)
        else:
            loss.backward(torch.tensor(factor, dtype=loss.dtype))
            self._until_backward.close()
        ended = time.perf_counter()
        self._result = StepResult(
            result.loss_sum + own * value,
            None,
            result.forward_s + called_at - self._began,
            result.backward_s + ended - called_at - exposed_s,
            exposed_s,
            hidden_s,
            last_bucket_s,
        )
        self._weight += own
        self._is_computed = True
        if batch.ends_step:
            self._end_step(batch)

    def _weight_of(self, batch: MicroBatch, weight: float | None) -> float:
        if weight is not None and not (math.isfinite(weight) and weight >= 0):
            raise UserError(f"run.backward: weight={weight} is no finite number from 0")
        if self._has_own_weights not in (None, weight is not None):
            raise UserError("run.backward: give weight= for every micro-batch, or for none")
        self._has_own_weights = weight is not None
        return float(batch.num_samples if weight is None or not batch.num_samples else weight)

    def _end_step(self, batch: MicroBatch) -> None:
        scale = 1.0
        if self._has_own_weights:
            total = self._group.sum([self._weight])[0]
            scale = 1 / total if total else 0.0
        self._follow_optimizer()
        self._strategy.apply_gradients(
            self._batch(batch, self._global_samples),
            self._result,
            scale=scale,
            can_recompute=False,
        )
        self._current = None

    def _follow_optimizer(self) -> None:
        """Take the learning rate of the program's optimizer where the strategy has one of its own.

        Raises: UserError when a scheduler has changed anything else.
        """
        own, optimizer = self._own_optimizer, self._strategy.optimizer
        if optimizer is own:
            return
        rate = own.param_groups[0]["lr"]
        rule = rule_of(own)
        if self._rule is None or rule != replace(self._rule, learning_rate=float(rate)):
            raise UserError(
                f"{type(self._strategy).__name__} follows the learning rate of the optimizer "
                'alone, and its other options have changed: take strategy="mpi"'
            )
        optimizer.param_groups[0]["lr"] = rate

    def _batch(self, batch: MicroBatch, weight: int) -> Batch:
        """Return what strategies know of a batch whose samples they do not see."""
        return Batch(NOTHING, NOTHING, batch.num_samples, weight, batch.step)

    def _check_backward(self, batch: MicroBatch) -> None:
        if not self._is_computed:
            raise UserError(
                f"run.backward was not called for micro-batch {batch.number} of step {batch.step}: "
                "call it once for each micro-batch of the loop"
            )

    def evaluate(
        self,
        function: Callable[[nn.Module, Any], Tensor | float | Mapping[str, Tensor | float]],
        data: object,
        *,
        batch_size: int | None = None,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> Any:
        """Return the mean of `function` over all samples of `data`, each counted once on any number
        of ranks; for a function that returns a dictionary, a dictionary. Collective.

        function: of the model, in evaluation mode and under no_grad, and of a batch as the data
            puts it together; returns means over the samples of the batch, or sums.
        batch_size: of a rank, at most; None: that of the run.
        reduction: mean: results count by the samples of their batch; sum: they are added up.
        """
        samples = samples_of(data, self._loading)
        size = batch_size or self._options.batch_size
        if not len(samples):
            raise UserError("run.evaluate: data has no samples")
        # From the last rank on: rank 0, which names the results, always has samples.
        own = evaluation_shard(len(samples), self.size - 1 - self.rank, self.size)
        indices = [
            torch.arange(start, min(start + size, own.stop))
            for start in range(own.start, own.stop, size)
        ]
        model = self._strategy.model
        modes = [(module, module.training) for module in model.modules()]
        self._strategy.synchronize_buffers()
        sums: dict[str, float] = {}
        is_mapping = False
        model.eval()
        try:
            with torch.no_grad():
                for chosen, batch in zip(indices, samples.batches(indices), strict=True):
                    values = function(model, batch)
                    is_mapping = isinstance(values, Mapping)
                    weight = len(chosen) if reduction == "mean" else 1
                    named = values if isinstance(values, Mapping) else {"": values}
                    for name, value in named.items():
                        sums[name] = sums.get(name, 0.0) + weight * float(value)
        finally:
            for module, is_training in modes:
                module.training = is_training
        return self._evaluated(sums, len(samples) if reduction == "mean" else 1, is_mapping)

    def _evaluated(self, sums: dict[str, float], divisor: int, is_mapping: bool) -> Any:
        """Add up the sums of the ranks, of which some may have had no samples."""
        is_mapping, names = json.loads(self._group.share(json.dumps([is_mapping, list(sums)])))
        totals = self._group.sum([sums.get(name, 0.0) for name in names])
        values = {name: total / divisor for name, total in zip(names, totals, strict=True)}
        return values if is_mapping else values[""]

    def reduce(self, value: float | Tensor, *, mean: bool = False) -> float:
        """Return the sum, or the mean, of every rank's `value`. Collective."""
        total = self._group.sum([float(value)])[0]
        return total / self.size if mean else total

    def print(self, *values: object) -> None:
        """Print on rank 0 alone."""
        if self.is_main:
            print(*values, flush=True)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._group.barrier()

    def close(self) -> None:
        """End the run: the ranks part. The model stays usable. Collective."""
        if not self._is_closed:
            self._is_closed = True
            self._strategy.close()
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is None:
            self.close()


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor):
        raise UserError(f"run.backward takes the loss as a tensor, not a {type(loss).__name__}")
    if loss.numel() != 1:
        raise UserError(
            f"run.backward takes a scalar loss, and this has shape {tuple(loss.shape)}: "
            "take its mean over the micro-batch"
        )
    if not loss.requires_grad:
        raise UserError(
            "the loss has no graph: it does not depend on a parameter that requires a gradient, or "
            "was computed under no_grad"
        )
