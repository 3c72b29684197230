"""The loop of a program that trains: micro-batches out, gradients in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.data.sampler import epoch_order, evaluation_shard, num_batches
from phalanx.errors import UserError
from phalanx.parallel.optimizer import JointOptimizer, rule_of
from phalanx.parallel.strategy import Strategy
from phalanx.run.batch import MicroBatch
from phalanx.run.gradients import StepGradients
from phalanx.run.micro_batches import MicroBatchSlice, micro_batches_of_rank
from phalanx.run.randomness import seed_micro_batch
from phalanx.run.samples import IndexedSamples, samples_of


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
        optimizers: Mapping[str, Optimizer],
        samples: IndexedSamples,
        options: LoopOptions,
        loading: dict[str, Any],
        leave: Callable[[], None],
    ) -> None:
        """strategy: prepared, with the program's model and optimizers. optimizers: by name, ""
        for the only one. leave: called once it is closed."""
        self._strategy, self._group = strategy, strategy.group
        self._optimizers, self._samples, self._options = optimizers, samples, options
        self._rule = rule_of(next(iter(optimizers.values())))
        self._gradients = StepGradients(strategy, optimizers)
        self._loading, self._leave = loading, leave
        self._current: MicroBatch | None = None
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
                self._gradients.begin_step(min(options.batch_size, len(order) - start))
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

    def _begin(self, batch: MicroBatch) -> None:
        self._current = batch
        self._gradients.begin(batch)
        seed_micro_batch(self._options.seed, batch.step, batch.number)

    def backward(
        self, loss: Tensor, *, weight: float | None = None, optimizer: str | None = None
    ) -> None:
        """Add the gradient of `loss` to those of the global batch; with the last micro-batch, sum
        them over the ranks and step the optimizers. Collective for that one.

        loss: 0-dim, the mean over the micro-batch; its gradient counts by the number of samples.
        weight: by which it counts instead, e.g. tokens or atoms; given for every micro-batch or
            for none. The gradient is that of Σ weight · loss ÷ Σ weight over the global batch.
        optimizer: name of the one whose parameters alone get the gradient, where
            `phalanx.start` was given several; a micro-batch is done when each has had a loss, and
            all step together. None: all of them.

        Raises: UserError for a loss that is no scalar or has no graph, and when gradients are not
                finite, naming the step, the ranks and a parameter.
        """
        batch = self._current
        if batch is None:
            raise UserError("run.backward is called once for each micro-batch of the run's loop")
        self._gradients.add(batch, loss, weight, optimizer)
        if batch.ends_step and self._gradients.is_computed:
            self._follow_optimizer()
            self._gradients.apply(batch)
            self._current = None

    def _follow_optimizer(self) -> None:
        """Take the learning rate of the program's optimizer where the strategy has one of its own.

        Raises: UserError when a scheduler has changed anything else.
        """
        own, optimizer = next(iter(self._optimizers.values())), self._strategy.optimizer
        if optimizer is own or isinstance(optimizer, JointOptimizer):
            return
        rate = own.param_groups[0]["lr"]
        rule = rule_of(own)
        if self._rule is None or rule != replace(self._rule, learning_rate=float(rate)):
            raise UserError(
                f"{type(self._strategy).__name__} follows the learning rate of the optimizer "
                'alone, and its other options have changed: take strategy="mpi"'
            )
        optimizer.param_groups[0]["lr"] = rate

    def _check_backward(self, batch: MicroBatch) -> None:
        if not self._gradients.is_computed:
            raise UserError(
                f"{self._gradients.describe_missing()} not called for micro-batch {batch.number} "
                f"of step {batch.step}: call it once for each micro-batch of the loop"
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
        samples = samples_of(data, self._loading, split="validation")
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
