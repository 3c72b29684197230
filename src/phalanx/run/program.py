"""The run of a program that trains: micro-batches out, gradients in."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from torch import Tensor, nn
from torch.utils.data import DataLoader

from phalanx.checkpoints.manifest import Value
from phalanx.comm.errors import PeerDepartedError
from phalanx.comm.recovery import Recovery
from phalanx.data.samples import Samples
from phalanx.errors import UserError
from phalanx.parallel.strategy import Strategy
from phalanx.records.totals import Validation
from phalanx.run.batch import Epoch, LoopOptions, MicroBatch, Position
from phalanx.run.certificate import certify
from phalanx.run.checkpointing import ProgramCheckpoints
from phalanx.run.departure import MEND, Departure, close_later
from phalanx.run.evaluation import Evaluated, EvaluatedData, Reduction, evaluate
from phalanx.run.feed import Feed
from phalanx.run.gather import check_gather, gather_rows
from phalanx.run.gradients import StepGradients
from phalanx.run.loop import TrainingLoop
from phalanx.run.model_changes import ModelChanges
from phalanx.run.packed import PackedSamples
from phalanx.run.program_loss import LossOf, WeightOf, detached
from phalanx.run.records import ProgramRecords
from phalanx.run.setup import RunSetup
from phalanx.run.spares import SparePlaces
from phalanx.run.stop import Stopped
from phalanx.run.summary import EpochSummaries, Show, scoring, validation_of


class ProgramRun:
    """A training run of a program, on one rank or many, as `phalanx.start` returns it.

    Iterating yields the micro-batches that this rank computes; `backward` takes the loss of each.
    After the last micro-batch of a global batch gradients are summed over the ranks, checked and
    clipped, and the optimizer steps. All ranks iterate to the end.

    The run ends with its loop, with a `with` block, or by `close`. After the loop `evaluate`,
    `reduce` and `log` still work.

    Example::

        run = phalanx.start(model, optimizer, data, batch_size=32, epochs=2)
        for epoch in run.epochs():
            for batch in epoch:
                run.backward(criterion(run.model(batch.inputs), batch.targets))
            run.log(error=run.evaluate(lambda m, b: criterion(m(b[0]), b[1]), validation_data))
    """

    def __init__(
        self,
        setup: RunSetup,
        changes: ModelChanges,
        strategy: Strategy,
        feed: Feed,
        records: ProgramRecords,
        checkpoints: ProgramCheckpoints,
        loop_options: LoopOptions,
    ) -> None:
        """strategy: prepared, with the program's model and optimizers."""
        self._source = setup.batches.source
        self._gradients = StepGradients(
            strategy,
            setup.optimizers,
            seed=setup.seed,
            schedulers=setup.schedulers,
            counts_by_weight=getattr(self._source, "skips_damaged", False),
            batch_norm=changes.batch_norm,
        )
        self._loop = TrainingLoop(
            strategy, feed, records.recorder, loop_options, self._gradients, checkpoints
        )
        self._strategy, self._group = strategy, strategy.group
        self._records, self._checkpoints = records, checkpoints
        self._setup, self._end_changes = setup, changes.end
        self._is_closed = self._has_ended = False
        self._has_completed: bool | None = None  # None: has not ended
        self._summaries = EpochSummaries(strategy, records.recorder, records.folder)
        self._loop.places = places = SparePlaces.of(self._loop, strategy, checkpoints.state)
        if places is not None:
            places.known = self._summaries.known
        self._evaluated = EvaluatedData(setup, strategy)
        if self._loop.stop is not None:
            self._loop.stop.on_terminate = records.expect_end
        gather = (lambda: None) if places is None else lambda: places.end("left")
        self._departure = Departure(strategy.group, gather)
        strategy.group.follow(self._record_loss)
        checkpoints.state.sums = self._epoch_sums
        self._lacks_counts = "the run was resumed within an epoch" * (loop_options.start.seen > 0)

    @property
    def model(self) -> nn.Module:
        """Module to call in the loop; the function of `evaluate` gets it as its first argument."""
        return self._strategy.module

    def state_dict(self) -> dict[str, Any]:
        """Return the model's `state_dict` with full tensors on every rank, even if the model holds
        shards. Collective.
        """
        return self._strategy.whole_state()

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self._strategy.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._strategy.size

    @property
    def state(self) -> dict[str, Any]:
        """State of the program, saved in checkpoints and restored when the run resumes: nested
        dictionaries and lists of tensors, NumPy arrays, numbers and strings. Rank 0's counts.

        Example::

            ema = run.state.setdefault("ema", {n: p.clone() for n, p in model.state_dict().items()})
        """
        return self._checkpoints.state.values

    @state.setter
    def state(self, values: dict[str, Any]) -> None:
        """Replace all of it."""
        self._checkpoints.state.values = values

    @property
    def position(self) -> Position:
        """Epochs that are complete, samples of the next one that all ranks have computed, and
        updates.
        """
        return self._loop.position

    @property
    def resumed(self) -> Mapping[str, Value] | None:
        """The options of `Checkpoints(options=…)` in the checkpoint from which the run resumed;
        None: the run started anew.
        """
        return self._checkpoints.resumed

    @property
    def is_main(self) -> bool:
        """True on rank 0."""
        return self.rank == 0

    def __iter__(self) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches of every epoch, in order.

        Raises: UserError when `backward` was not called for the one before, and the second time.
        """
        for epoch in self.epochs():
            yield from epoch

    def epochs(self) -> Iterator[Epoch]:
        """Yield the epochs that are left, each an iterable of this rank's micro-batches.

        A checkpoint follows each epoch, where `checkpoint_dir` is given.

        Example::

            for epoch in run.epochs():
                for batch in epoch:
                    run.backward(criterion(run.model(batch.inputs), batch.targets))
                run.print(epoch.number, run.evaluate(accuracy, validation_data))

        Raises:
            UserError: If `backward` was not called for a micro-batch, or the run is iterated twice.
        """
        if self._departure.has_begun:
            raise UserError("a run can be iterated only once: start another run for more epochs")
        self._departure.begin(sys._getframe(1))
        close_later(lambda: self.is_over, self.close_unless_failed)
        try:
            for epoch in self._loop.epochs(self._end):
                yield epoch
                self._tell_of_data()
        except GeneratorExit:  # raised by `break`, an exception, or the holder of the iterator
            self._leave()
            raise
        except Stopped as stopped:
            self._end(stopped)
            raise
        except BaseException:
            self._departure.fail()  # the error says why
            self._loop.stop_listening(has_failed=True)
            raise
        if self._loop.is_dismissed:
            self._leave()
            return
        self._end()

    def _tell_of_data(self) -> None:
        """Print and record what the run's data have to say, such as of damaged samples."""
        if isinstance(self._source, PackedSamples):
            for text in self._source.notices():
                self._records.note(text, of_all=True)
                self.print(text)

    def _leave(self) -> None:
        """Leave the loop before its end, as all ranks do after the same step."""
        if self.is_over:
            return
        self._departure.note(self._loop.position.step)
        self._loop.stop_listening(has_failed=True)  # perhaps
        self._gradients.release()
        self._end_changes()

    @property
    def is_over(self) -> bool:
        """True once the loop has ended or was left."""
        return self._has_ended or self._departure.has_left

    def backward(
        self, loss: Tensor, *, weight: float | None = None, optimizer: str | None = None
    ) -> None:
        """Add the gradient of `loss` to that of the global batch; the last micro-batch sums it over
        the ranks and steps the optimizers. Collective for that one.

        Args:
            loss: Mean over the micro-batch, 0-dim. Its gradient counts by the number of samples.
            weight: Weight of the loss in place of the number of samples, e.g. tokens, for every
                micro-batch or for none: the gradient is that of Σ weight · loss ÷ Σ weight.
            optimizer: Name of the only one, of several, whose parameters get the gradient; they
                step together once each has had a loss. None: all; with `alternate`, that of the
                step.

        Raises:
            UserError: For a loss that is no scalar or has no graph, and for gradients that are not
                finite, with the step, the ranks and a parameter.
        """
        batch = self._current("run.backward")
        if self._strategy.makes_steps:
            raise UserError(
                "a pipeline computes forward pass, loss and backward pass in one call: use "
                "run.step(batch, loss) in place of run.model and run.backward"
            )
        try:
            self._gradients.add(batch, loss, weight, optimizer)
            self._end_micro_batch(batch)
        except BaseException as error:
            self._fail(batch, error)
            raise

    def step(
        self, batch: MicroBatch, loss: LossOf, *, weight: float | WeightOf | None = None
    ) -> Any:
        """Compute a micro-batch from its inputs to its gradients, under every strategy; the last
        one of a global batch makes the update, as `backward` does. Collective for that one.

        Example::

            for batch in run:
                run.step(batch, torch.nn.functional.cross_entropy)

        Args:
            batch: The latest micro-batch of the loop.
            loss: Function of outputs and targets that returns the mean over their samples, 0-dim. A
                pipeline calls it for each of its own micro-batches, on the rank of the last stage.
            weight: Weight of the mean in place of the number of samples, as of `backward`; or a
                function of the targets that returns it, which is what a pipeline takes.

        Returns:
            The outputs, detached; None on ranks that do not have them, such as those of a
            pipeline's other stages.

        Raises:
            UserError: As `backward`, and for data that a pipeline cannot take.
        """
        current = self._current("run.step")
        if batch is not current:
            raise UserError("run.step takes the latest micro-batch of the run's loop")
        if not self._strategy.makes_steps:
            self._gradients.passes.note(batch, loss)
            outputs = self.model(batch.inputs)
            counts = weight(batch.targets) if callable(weight) else weight
            own_loss = loss(outputs, batch.targets)
            self._records.recorder.note_outputs(batch, outputs)
            self.backward(own_loss, weight=counts)
            return detached(outputs)
        if weight is not None and not callable(weight):
            raise UserError(
                f"run.step: weight={weight!r}, but a pipeline splits the micro-batch further: give "
                "a function from targets to their weight"
            )
        try:
            outputs = self._gradients.compute(batch, loss, weight)
            self._records.recorder.note_outputs(batch, outputs)
            self._end_micro_batch(batch)
        except BaseException as error:
            self._fail(batch, error)
            raise
        return outputs

    def _current(self, call: str) -> MicroBatch:
        if self._loop.current is None:
            raise UserError(f"{call} is for the micro-batches of the run's loop, once for each")
        return self._loop.current

    def _fail(self, batch: MicroBatch, error: BaseException) -> None:
        """Note what ends the loop. Raises: UserError for a peer that has left it."""
        self._departure.fail()  # the error says why
        if isinstance(error, PeerDepartedError):
            raise UserError(f"step {batch.step}: {error}, unlike other ranks: {MEND}") from error

    def _end_micro_batch(self, batch: MicroBatch) -> None:
        """Make the step, where that was the last micro-batch of one."""
        loop = self._loop
        if not (batch.ends_step and self._gradients.is_computed):
            return
        if self._strategy.missing:
            loop.extend_step()
            return
        result = self._gradients.apply(batch)
        self._gradients.step_schedulers()
        self._records.recorder.count_step(batch, result)
        if result.is_skipped:
            self.print(f"skipped {result.why_skipped}")
        loop.end_step(result, self._gradients.num_samples if self._strategy.counts_samples else 0)
        self._records.show(loop.position)
        self._checkpoints.check(loop.position.step)

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the rows of the global batch, for a loss over several samples, such as a
        contrastive one. Gradients return to the rank that computed a row. Collective, within the
        loop.

        Example::

            a, b = run.gather(encode(batch.inputs)), run.gather(encode(batch.targets))
            run.backward(contrastive(a, b))  # the same loss on every rank

        Args:
            tensor: (n, …), a row for each sample of the micro-batch, such as an output of the model
                or a label.

        Returns:
            The rows of all ranks, in the order of the samples.

        Raises:
            UserError: If a global batch is not computed at once, as with `micro_batches=` or
                `bitwise=True`, or if rows are not one per sample and of one shape on all ranks.
        """
        batch = self._current("run.gather")
        check_gather(self._strategy, self._setup.batches.number)
        self._gradients.is_collective = True
        return gather_rows(self._group, batch, tensor)

    def _record_loss(self, recovery: Recovery) -> None:
        step, seconds = self._loop.position.step, recovery.seconds
        self._records.recorder.add_loss(step, recovery.lost, seconds)
        self._lacks_counts = f"ranks were lost at step {step}"

    def _epoch_sums(self) -> tuple[float, int]:
        counts = self._records.recorder.counts
        return counts.summed_loss, counts.summed_samples

    def evaluate(
        self,
        function: Callable[[nn.Module, Any], Evaluated],
        data: object,
        *,
        batch_size: int | None = None,
        reduction: Reduction = "mean",
    ) -> Any:
        """Return the mean of `function` over all samples of `data`, each counted once on any number
        of ranks. Collective.

        Args:
            function: Function of the model, in evaluation mode and under `no_grad`, and of a batch
                as the data set puts it together; returns means over its samples, or sums: a number,
                or a dictionary of numbers, as this method then does.
            data: Data as `phalanx.start` takes them, with the run's `collate_fn`; of a `DataLoader`
                the samples that its sampler yields, without those that it drops.
            batch_size: Largest number of samples per call and rank. None: that of the `DataLoader`,
                or of the run.
            reduction: `mean`: results count by the samples of their batch; `sum`: they are added
                up.
        """
        self._departure.agree()
        samples = self._evaluated.of(data)
        if batch_size is None and isinstance(data, DataLoader):
            batch_size = data.batch_size
        return self._group.together(
            lambda: evaluate(
                self._strategy,
                function,
                samples,
                batch_size=self._loop.options.batch_size if batch_size is None else batch_size,
                reduction=reduction,
                seed=self._setup.seed,
                device=self._setup.device,
            )
        )

    def validate(self, data: object, loss: LossOf, *, batch_size: int | None = None) -> Validation:
        """Evaluate the model for the summary of the epoch. Collective.

        Example::

            run.summarize(run.validate(validation_data, torch.nn.functional.cross_entropy))

        Args:
            data: Data of inputs and targets, as of `evaluate`.
            loss: Function of outputs and targets that returns the mean over their samples.
            batch_size: Largest number of samples per call and rank, as of `evaluate`.

        Returns:
            Number of samples, their mean loss and, with `Records(counts_correct=True)`, the
            accuracy.
        """
        began, recorder = time.perf_counter(), self._records.recorder
        score = scoring(loss, counts_correct=recorder.counts.right is not None)
        sums = self.evaluate(score, data, batch_size=batch_size, reduction="sum")
        return validation_of(sums, began, targets_per_sample=recorder.targets_per_sample)

    def some_samples(self, number: int) -> Samples:
        """Return some of the training samples, to evaluate on: the same for every seed.

        Args:
            number: Number of samples; all where there are fewer.

        Returns:
            Data for `evaluate` and `validate`.

        Raises:
            UserError: For data that are not read by index.
        """
        return self._evaluated.some(number)

    def summarize(
        self,
        validation: Validation | None = None,
        *,
        training: Validation | None = None,
        show: Show | None = None,
    ) -> None:
        """Record the summary of the epoch that has just ended: loss, time, accuracy, and those of
        an evaluation. Collective.

        Args:
            validation: Result of `validate` on validation data. None: none.
            training: Result of `validate` on training data. None: none.
            show: Function that gets the summary, on the one rank that writes it. None: none.
        """
        self._departure.agree()
        epoch = self._records.epoch_before(self._loop.position)
        self._summaries.add(epoch, validation, training, show)

    @property
    def step_loss(self) -> float | None:
        """Mean loss of the last step's global batch before its update, over all ranks, weighted as
        by `backward`; None before the first step, and with `strategy="local"`, whose ranks train
        alone. Not collective: the step has summed it.
        """
        summed = self._strategy.summed
        return None if summed is None else summed.loss / (summed.weight or 1)

    @property
    def grad_norm(self) -> float | None:
        """Norm of the last step's gradients over all parameters and ranks, before they were
        clipped; None where `clip_norm` was not given. Not collective."""
        return self._strategy.grad_norm

    def training_loss(self) -> float:
        """Return the mean loss of this epoch's samples so far, over all ranks, weighted as by
        `backward`; also if the run was resumed or lost ranks within the epoch. Collective.
        """
        self._departure.agree()
        recorder = self._records.recorder
        recorder.sum_losses()
        loss_sum, samples = recorder.counts.summed_loss, recorder.counts.summed_samples
        return loss_sum / samples if samples else math.nan

    def reduce(self, value: float | Tensor, *, mean: bool = False) -> float:
        """Return the sum, or the mean, of every rank's `value`. Collective.

        A value counted up over steps lacks the part of ranks that died, and of an epoch before it
        was resumed; a line on stderr says so once.

        Args:
            value: A number of this rank.
            mean: True for the mean over the ranks, False for the sum.

        Raises:
            UserError: For a value that is no number.
        """
        self._departure.agree()
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"run.reduce: {value!r} is not a number: reduce one by one") from error
        if self._lacks_counts and self.is_main:
            print(
                f"phalanx: run.reduce: {self._lacks_counts}: a value that is summed over steps "
                "may lack the earlier part. run.training_loss() and run.evaluate are complete; so "
                "is run.state, if each step adds its run.reduce there",
                file=sys.stderr,
                flush=True,
            )
        self._lacks_counts = ""
        total = self._group.sum([number])[0]
        return total / self.size if mean else total

    def log(self, **metrics: float | Tensor) -> None:
        """Record rank 0's metrics after the last step; the report draws them over the steps.

        Example::

            run.log(validation_loss=run.evaluate(loss, validation_data))

        Args:
            **metrics: Numbers by name; `run.reduce` gives one number for all ranks.

        Raises:
            UserError: For a value that is no number.
        """
        self._records.log(self._loop.position, metrics)

    def print(
        self,
        *values: object,
        sep: str = " ",
        end: str = "\n",
        file: TextIO | None = None,
        flush: bool = True,
    ) -> None:
        """Print on rank 0 alone, as `print` does.

        Args:
            *values: Values to print.
            sep, end, file, flush: As of the built-in `print`.
        """
        if self.is_main:
            print(*values, sep=sep, end=end, file=file, flush=flush)

    def barrier(self) -> None:
        """Wait until every rank has arrived. Collective."""
        self._departure.agree()
        self._group.barrier()

    def close(self) -> None:
        """End the run: the ranks disconnect, the model stays usable. Collective.

        A run whose loop has ended is also closed when another one starts, or the program ends.
        """
        if not self._is_closed:
            self._is_closed = True
            if self._departure.has_begun:
                self._leave()
            self._departure.agree()
            self._end()
            self._evaluated.close()
            self._strategy.close()

    def close_unless_failed(self) -> None:
        """Close the run, unless a stop or an error is known to have ended it. Collective."""
        has_failed = self._departure.has_failed or self._records.has_failed
        if not (has_failed or self._has_completed is False):
            self.close()

    def _end(self, stopped: Stopped | None = None) -> None:
        """Complete checkpoints and records once, and leave the model to the program. Collective."""
        if self._has_ended:
            return
        self._has_ended = True
        self._has_completed = False  # set again once nothing below has failed
        if self._loop.places is not None:
            self._loop.places.end("left")
        self._departure.cancel()
        self._gradients.release()
        self._end_changes()
        self._checkpoints.close()
        if self._departure.has_left:
            self._records.note(f"the program left the loop after {self._loop.progress}")
        certificate = None if stopped else certify(self._strategy, self._loop.position.step)
        self._records.finish(self._strategy, stopped, certificate)
        self._loop.stop_listening()
        self._has_completed = stopped is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Stopped):
            self.close()
        else:
            self._departure.fail()
