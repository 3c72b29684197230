"""Execution of a pipeline: the micro-batches of a step in, losses and logits out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from phalanx.parallel.loss import LossFunction, join_logits
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.messages import Handover, StageMessages
from phalanx.parallel.pipeline.orders import Action, Kind, forward_order, order_of
from phalanx.parallel.pipeline.stage import MicroBatchLoss, Stage
from phalanx.parallel.step import Batch, StepResult
from phalanx.records.events import ActionEvent

RECORDED_STEPS = (4, 5)
"""Steps of this process, from 1: by then every buffer exists; more would make records long."""
LossOf = Callable[[Tensor, Batch], MicroBatchLoss]
"""Loss of the outputs for a micro-batch."""


class Pipeline:
    """One rank's stages and their part in every step. All methods but the plain questions are
    collective over the ranks of the pipeline, which see the same samples.

    A step adds to the gradients of the stages' parameters, and nothing else: clearing them,
    summing them over replicas and the optimizer are left to the caller.
    """

    def __init__(
        self,
        layout: PipelineLayout,
        rank: int,
        stages: Mapping[int, Stage],
        messages: StageMessages,
        *,
        loss_of: LossOf,
        clock_offset_s: float = 0.0,
    ) -> None:
        """rank: this one's, among those of the layout. stages: its own, by number.
        clock_offset_s: from `comm.clock.estimate_offset`.

        Raises: ValueError when the stages are not those of the layout.
        """
        if tuple(stages) != layout.stages_of(rank):
            raise ValueError(
                f"rank {rank} of {layout} holds stages {layout.stages_of(rank)}, not "
                f"{tuple(stages)}"
            )
        self.layout, self.rank = layout, rank
        self.is_last = layout.last_rank == rank
        self._stages, self._messages, self._loss_of = stages, messages, loss_of
        self._order = list(order_of(layout, rank))
        self._last_backward = {a.stage: a for a in self._order if a.kind == "backward"}
        self._recorder = Recorder(clock_offset_s=clock_offset_s)
        self._steps_made = 0
        self._losses: dict[int, MicroBatchLoss] = {}
        self._awaited: set[tuple[int, int]] = set()
        """Stages and micro-batches whose gradient the next stage sends."""

    def step(self, micro_batches: Sequence[Batch | None], *, number: int = 0) -> StepResult:
        """Run forward and backward passes of one batch: adds the gradients of its losses.

        micro_batches: as many as the layout has, the same on every rank; None: one that is left
        out. number: of the step, for `actions`.
        Returns: the loss and the logits on ranks with the last stage; as communication what the
                 step took beyond this rank's own work: waiting, sending, receiving.
        Raises: ValueError, before anything is sent, for samples that do not fit the stages.
        """
        assert len(micro_batches) == self.layout.micro_batches, "one for each, or None"
        self._batches = {n: batch for n, batch in enumerate(micro_batches) if batch is not None}
        self._steps_made += 1
        self._awaited.clear()
        for batch in self._batches.values():
            self._messages.check(batch.inputs)
        sizes = {n: batch.num_samples for n, batch in self._batches.items()}
        for stage in self._stages.values():
            stage.begin(number, sizes)
        self._recorder.begin(number)
        began = time.perf_counter()
        with self._messages.moving():
            for action in self._order:
                if action.micro_batch not in sizes:
                    continue
                if action.kind == "forward":
                    self._forward(action)
                elif action.kind != "weight gradient":
                    self._backward(action)
                elif self._stages[action.stage].splits_backward:
                    self._backward_weights(action)
            self._messages.finish()
        step_s = time.perf_counter() - began
        forward_s = self._recorder.seconds_of("forward")
        backward_s = self._recorder.seconds_of("backward", "input gradient", "weight gradient")
        loss_sum, logits = 0.0, list[Tensor | None]()
        for _, loss in sorted(self._losses.items()):
            loss_sum += loss.total
            logits.append(loss.logits)
        self._losses.clear()
        others_s = max(0.0, step_s - forward_s - backward_s)
        return StepResult(loss_sum, join_logits(logits), forward_s, backward_s, others_s)

    @torch.no_grad()
    def predict(self, inputs: Tensor, piece_size: int) -> Tensor | None:
        """(n, …, classes): the logits of `inputs`, of any number of samples, without gradients;
        None on ranks without the last stage.

        piece_size: samples that go through together. Pieces follow one another, so that all ranks
        work at the same time.
        """
        pieces = inputs.split(piece_size)
        outputs: dict[int, Tensor] = {}
        for place, number in forward_order(self.layout, self.rank, len(pieces)):
            given: Tensor | None = pieces[number]
            if place:
                size = len(pieces[number])
                given = self._messages.receive(place - 1, place, number, size).tensor
            output = self._stages[place].layers(given)
            if place == self.layout.num_stages - 1:
                outputs[number] = output
            else:
                self._messages.send(Handover(output), place, place + 1, number)
        self._messages.finish()
        if not self.is_last:
            return None
        return torch.cat([outputs[n] for n in sorted(outputs)]) if len(pieces) > 1 else outputs[0]

    def actions(self) -> Sequence[ActionEvent]:
        """Return this rank's actions in the last step."""
        return self._recorder.actions

    def recorded_actions(self) -> Sequence[ActionEvent]:
        """Return the same where they are to be recorded; else none."""
        return self.actions() if self._steps_made in RECORDED_STEPS else ()

    def _forward(self, action: Action) -> None:
        _, place, number = action
        stage, batch = self._stages[place], self._batches[number]
        given = Handover(batch.inputs)
        if place:
            given = self._messages.receive(place - 1, place, number, len(batch.inputs))
        began_s = self._recorder.now()
        made = stage.forward(number, given)
        is_end = place == self.layout.num_stages - 1
        if is_end:
            self._losses[number] = loss = self._loss_of(stage.output_of(number), batch)
            stage.end_with(number, loss)
        self._recorder.add("forward", place, number, began_s)
        if not is_end:
            self._messages.send(made, place, place + 1, number)
            if made.requires_grad:
                self._awaited.add((place, number))

    def _backward(self, action: Action) -> None:
        kind, place, number = action
        stage, gradient = self._stages[place], None
        if (place, number) in self._awaited:
            size = len(self._batches[number].inputs)
            gradient = self._messages.receive(place + 1, place, number, size).tensor
        began_s = self._recorder.now()
        if kind == "backward":
            is_last = action == self._last_backward[place]
            back = stage.backward(number, gradient, is_last=is_last)
        else:
            back = stage.backward_input(number, gradient)
        self._recorder.add(kind if stage.splits_backward else "backward", place, number, began_s)
        if back is not None:
            self._messages.send(back, place, place - 1, number)

    def _backward_weights(self, action: Action) -> None:
        began_s = self._recorder.now()
        self._stages[action.stage].backward_weights(action.micro_batch)
        self._recorder.add(*action, began_s)


def summed(loss: LossFunction) -> LossOf:
    """Return the loss of a micro-batch as the sum over its samples, of which the gradients are
    those of the mean over the global batch."""

    def loss_of(outputs: Tensor, batch: Batch) -> MicroBatchLoss:
        total = loss.sum_over(outputs, batch.targets, batch.num_samples)
        return MicroBatchLoss(total, 1 / batch.global_targets, total.item(), loss.logits(outputs))

    return loss_of


class Recorder:
    """Recorder of a rank's timed actions in a step. Costs two readings of the clock an action."""

    def __init__(self, *, clock_offset_s: float = 0.0) -> None:
        """clock_offset_s: from this rank's clock to the one that all ranks share."""
        self.actions: list[ActionEvent] = []
        self._offset_s = clock_offset_s
        self._step = 0

    def begin(self, step: int) -> None:
        """Begin `step`, and drop the actions of the one before."""
        self.actions, self._step = [], step

    def now(self) -> float:
        return time.perf_counter() + self._offset_s

    def add(self, kind: Kind, stage: int, micro_batch: int, began_s: float) -> None:
        """Record an action that ends now; who writes the record says when that is."""
        action = ActionEvent(
            at_s=0.0,
            step=self._step,
            stage=stage,
            micro_batch=micro_batch,
            kind=kind,
            began_s=began_s,
            ended_s=self.now(),
        )
        self.actions.append(action)

    def seconds_of(self, *kinds: Kind) -> float:
        return sum(a.ended_s - a.began_s for a in self.actions if a.kind in kinds)
