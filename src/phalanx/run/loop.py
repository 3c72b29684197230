"""The loop of a rank, common to all strategies and programs: data in, records out.

Whoever iterates it computes, by `run.backward` or `run.step`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from phalanx.data.sampler import num_batches
from phalanx.errors import UserError
from phalanx.parallel.step import StepResult
from phalanx.parallel.strategy import Strategy
from phalanx.run.batch import Epoch, LoopOptions, MicroBatch, Position
from phalanx.run.checkpointing import ProgramCheckpoints
from phalanx.run.feed import Feed
from phalanx.run.gradients import StepGradients
from phalanx.run.recording import RunRecorder
from phalanx.run.step_watch import StepWatch
from phalanx.run.stop import Stopped, StopRequest

if TYPE_CHECKING:
    from phalanx.run.spares import SparePlaces

MEASURED_STEP = 2
"""The step of a run after which memory is measured: by then every buffer has been made."""


class TrainingLoop:
    """Epochs and steps of one rank. All ranks iterate to the end."""

    def __init__(
        self,
        strategy: Strategy,
        feed: Feed,
        recorder: RunRecorder,
        options: LoopOptions,
        gradients: StepGradients,
        checkpoints: ProgramCheckpoints,
    ) -> None:
        self.strategy, self.recorder, self._checkpoints = strategy, recorder, checkpoints
        self._feed, self._gradients, self.options = feed, gradients, options
        self._num_ended = 0  # epochs
        self._is_extended = False
        """True if the step continues after its last micro-batch, because ranks were lost."""
        self.position = options.start
        """Position after the last step."""
        self.current: MicroBatch | None = None
        """Micro-batch of an unfinished step that is computed now."""
        self._began = self._waited_s = 0.0
        self._num_computed = 0  # micro-batches of the step
        self._watch = StepWatch.of(strategy, recorder, rebalances=options.rebalances)
        self.places: SparePlaces | None = None
        """Places of a run with spares."""
        self.is_dismissed = False
        """True for a spare with nothing left to do: the other ranks have left the loop."""
        self._epoch = Epoch(options.start.epoch, iter(()))
        self.stop: StopRequest | None = None
        if checkpoints.are_saved:
            self.stop = StopRequest(
                strategy.group,
                save_every_s=checkpoints.options.every_seconds,
                is_saving=checkpoints.poll,
                copies=checkpoints.copies,
            )

    def epochs(self, end: Callable[[Stopped], None]) -> Iterator[Epoch]:
        """Yield the epochs that are left; a checkpoint follows each.

        end: called, on all ranks, where the run stops within an epoch. The program is there then,
            and this generator does not hear of it.
        Raises: UserError when an epoch was not iterated to its end.
        """
        options = self.options
        while self.position.epoch < options.epochs and self._steps_left():
            if self._num_ended:
                self.stop_if_asked()
            epoch, ended = self.position.epoch, self._num_ended
            self._epoch = Epoch(epoch, self._epoch_until(end))
            yield self._epoch
            if self.is_dismissed:
                return
            if self._num_ended == ended:
                raise UserError(
                    f"epoch {epoch} was left early, but every rank must iterate each of "
                    "run.epochs() to its end: give steps= for a shorter run"
                )
            if self._checkpoints.are_saved:
                self._save()

    def stop_if_asked(self) -> None:
        """End the run between two epochs, after their checkpoint, where a signal has asked for it.
        Collective.

        Raises: Stopped.
        """
        if self.stop is not None and self.stop.agree(self.position.step, now=True):
            if self.places is not None:
                self.places.end("stopped")
            raise Stopped(self.position.step)
        self._copy()

    @property
    def progress(self) -> str:
        """Updates made, of how many where that is known."""
        options, samples = self.options, self._feed.num_samples
        whole = [] if options.steps is None else [options.steps]
        if samples is not None and options.epochs < sys.maxsize:
            whole.append(options.epochs * num_batches(samples, options.batch_size))
        return f"step {self.position.step}" + (f" of {min(whole)}" if whole else "")

    def _steps_left(self) -> int:
        return (self.options.steps or sys.maxsize) - self.position.step

    def _epoch_until(self, end: Callable[[Stopped], None]) -> Iterator[MicroBatch]:
        try:
            yield from self.epoch()
            if self.options.ends_with_epoch:
                raise Stopped(self.position.step)
        except Stopped as stopped:
            end(stopped)
            raise

    def epoch(self) -> Iterator[MicroBatch]:
        """Yield the micro-batches that are left of the next epoch. Collective; the ranks start and
        end together."""
        strategy, recorder, places = self.strategy, self.recorder, self.places
        comes_late = places is not None and places.begin_epoch()
        if self.is_dismissed:
            return
        first = self.position
        if not comes_late:
            strategy.group.barrier()
            if self.options.agree is not None:
                self.options.agree(first.epoch)
        if self.stop is not None:
            self.stop.announce()
        recorder.begin_epoch()
        if first == self.options.start:
            recorder.counts.summed_loss, recorder.counts.summed_samples = self.options.sums
        if places is not None and comes_late:
            places.restore_sums()
        if strategy.role == "server":
            self._serve()
        else:
            yield from self._micro_batches()
        if places is not None and self._is_last_epoch:
            places.end("over")
        strategy.finish_epoch()
        strategy.synchronize_buffers()
        strategy.group.barrier()
        recorder.end_epoch(first.epoch, first_sample=first.seen)
        self._num_ended += 1
        if self._steps_left() or self.position.seen == self._feed.num_samples:
            self.position = Position(epoch=first.epoch + 1, step=self.position.step)

    def _micro_batches(self) -> Iterator[MicroBatch]:
        """Yield the micro-batches of an epoch; between them the position moves on, and checkpoints
        are written."""
        clock = time.perf_counter
        due, is_in_step, gradients = self._next_save(self.position), False, self._gradients
        asked_at = clock()
        for batch in self._fed():
            self.current = batch
            if not is_in_step:
                self._began, self._waited_s, self._num_computed = asked_at, 0.0, 0
                gradients.begin_step(batch)
            self._waited_s += clock() - asked_at
            self._num_computed += batch.num_samples > 0
            gradients.begin(batch)
            yield batch
            gradients.check(batch)
            is_in_step, asked_at = not batch.ends_step, clock()
            if is_in_step or batch.agree_on_end():  # agreeing may read ahead
                continue
            if self.stop is not None or self.places is not None:
                read_at = clock()
                due = self._end_step_within(due)
                asked_at += clock() - read_at

    def _end_step_within(self, due: int | None) -> int | None:
        """Save, stop or take in spares after a step within an epoch, where that is due. Collective.

        due: as of `_next_save`, which is returned anew. Raises: Stopped.
        """
        step, stops = self.position.step, self._stops()
        if stops or step == due or self._saves_by_time:
            self._save_within()
        else:
            self._copy()
        if stops and self.places is not None:
            self.places.end("stopped")
        if stops:
            raise Stopped(step)
        if self.places is not None:
            self.places.end_step()
        return step + (self._checkpoints.options.every_steps or 0) if step == due else due

    def _fed(self) -> Iterator[MicroBatch]:
        """Yield what the feed has for this rank. It changes when ranks are lost: this rank gets
        micro-batches of theirs that the step still needs, and more of each later step."""
        strategy = self.strategy
        first: Sequence[int] | None = None
        while True:
            numbers = strategy.numbers
            feed = self._feed if numbers is None else self._feed.of(numbers, first)
            for batch in feed.micro_batches(self.position, self._steps_left()):
                yield batch
                is_changed = self.position.step > batch.step and strategy.numbers != numbers
                if self._is_extended or is_changed:
                    break
            else:
                return
            first = strategy.missing if self._is_extended else None
            self._is_extended = False

    def extend_step(self) -> None:
        """Continue the step after its last micro-batch, since others of it were lost."""
        batch = self.current
        assert batch is not None, "within a step"
        self._is_extended = True
        object.__setattr__(batch, "ends_step", False)
        object.__setattr__(batch, "end", False)

    def arrive(self, position: Position) -> None:
        """Go on from a position that peers have reached, as a rank that takes a place."""
        self.position, self._epoch.number = position, position.epoch
        self.recorder.arrive(position.step)
        self._gradients.resume()

    def regroup(self) -> None:
        """Agree on what the ranks ask each other now and then as if they had just begun: others
        have joined them. At the same step on all."""
        if self._watch is not None:
            self._watch.restart()
        if self.stop is not None:
            self.stop.restart(self.position.step)

    @property
    def _is_last_epoch(self) -> bool:
        return self.position.epoch + 1 >= self.options.epochs or not self._steps_left()

    def _stops(self) -> bool:
        """Return whether to end the run after this step. Collective now and then."""
        self._checkpoints.poll()
        stop, step = self.stop, self.position.step
        return stop is not None and self.strategy.is_in_lockstep and stop.agree(step)

    def stop_listening(self, *, has_failed: bool = False) -> None:
        """Let signals have the effect that they had before the run. Not collective."""
        if self.stop is not None:
            self.stop.close(has_failed=has_failed)

    @property
    def _saves_by_time(self) -> bool:
        return self.stop is not None and self.stop.saves

    def end_step(self, result: StepResult, samples: int) -> None:
        """Record the step that was just made, and move on. samples: of this rank."""
        batch, ended, recorder = self.current, time.perf_counter(), self.recorder
        assert batch is not None, "within a step"
        self.current = None
        epoch, seen, step = self.position
        self.position = Position(epoch, seen + batch.global_samples, step + 1)
        recorder.counts.damaged = self._feed.num_damaged if self.strategy.counts_samples else 0
        times = (self._began, self._began + self._waited_s, ended)
        recorder.end_step(epoch, step, result, times, samples)
        if self._watch is not None:
            self._watch.end_step(step, result, times, self._num_computed)
        if step == self.options.start.step:
            self.strategy.group.report_waits()
        if step == self.options.start.step + MEASURED_STEP:
            recorder.add_memory()

    def _next_save(self, position: Position) -> int | None:
        """Return the number of steps made at which the next checkpoint within the epoch is due."""
        period = self._checkpoints.options.every_steps
        if period is None:
            return None
        made = num_batches(position.seen, self.options.batch_size)
        return position.step + period - made % period

    def _save_within(self) -> None:
        self.strategy.finish_epoch()
        self.strategy.synchronize_buffers()
        self._save()

    def _save(self) -> None:
        self.recorder.sum_losses()
        self._checkpoints.save(self.position)
        if self.stop is not None:
            self.stop.saved()

    def _copy(self) -> None:
        """Have the state copied in memory, where the ranks have agreed on it."""
        stop, copies = self.stop, self._checkpoints.copies
        if stop is None or copies is None or not stop.copies_at:
            return
        self.strategy.finish_epoch()
        self.strategy.synchronize_buffers()
        self.recorder.sum_losses()
        (epoch, seen, step), saved_at = self.position, stop.copies_at
        self.strategy.group.together(lambda: copies.save((epoch, seen), step, saved_at))
        stop.copies_at = 0.0
        self.strategy.group.barrier()  # ranks may share what is copied

    def _serve(self) -> None:
        """Serve the workers, in segments between two checkpoints."""
        assert self._feed.num_samples is not None, "servers know the length of an epoch"
        first, size = self.position, self.options.batch_size
        steps = num_batches(self._feed.num_samples - first.seen, size)
        end = first.step + min(steps, self._steps_left())
        step = first.step
        while step < end:
            stop = min(end, self._next_save(self.position) or end)
            self.strategy.serve(stop - step)
            if step <= self.options.start.step + MEASURED_STEP < stop:
                self.recorder.add_memory()
            seen = min(self._feed.num_samples, first.seen + (stop - first.step) * size)
            step, self.position = stop, Position(epoch=first.epoch, seen=seen, step=stop)
            if step < end:
                self._save_within()
