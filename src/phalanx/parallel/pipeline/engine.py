"""Execution of a pipeline: full batches in, losses and logits out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from phalanx.parallel.loss import CrossEntropy, LossFunction, join_logits
from phalanx.parallel.pipeline.boundaries import Boundary
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.padding import pad_batch
from phalanx.parallel.pipeline.prediction import Predictor
from phalanx.parallel.pipeline.recorder import Recorder
from phalanx.parallel.pipeline.stages import TimedStage
from phalanx.parallel.pipeline.traffic import step_traffic
from phalanx.parallel.step import IGNORED, StepResult, TimedAction


class Pipeline:
    """One rank's stages and their part in every step. All methods but the plain questions are
    collective over the ranks of the pipeline, which see the same samples.

    A step adds to the gradients of the stages' parameters, and nothing else: clearing them,
    summing them over replicas and the optimizer are left to the caller.
    """

    def __init__(
        self,
        layout: PipelineLayout,
        modules: Mapping[int, nn.Module],
        boundaries: Sequence[Boundary],
        *,
        micro_batch_size: int,
        group: dist.ProcessGroup,
        clock_offset_s: float = 0.0,
        loss: LossFunction | None = None,
    ) -> None:
        """modules: this rank's stages, by number; they may be split or sharded already.
        boundaries: what goes into each stage, and last the logits that leave the last one.
        micro_batch_size: samples; shapes between stages do not change.
        clock_offset_s: from `comm.clock.estimate_offset`. loss: None: cross entropy.

        Raises: ValueError when the group or the stages are not those of the layout.
        """
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if size != layout.num_ranks:
            raise ValueError(f"{layout} is for {layout.num_ranks} ranks, but the group has {size}")
        if tuple(modules) != layout.stages_of(rank):
            raise ValueError(
                f"rank {rank} of {layout} holds stages {layout.stages_of(rank)}, not "
                f"{tuple(modules)}"
            )
        self.layout, self.rank = layout, rank
        self._loss_function = loss or CrossEntropy()
        self.micro_batch_size, self._boundaries = micro_batch_size, boundaries
        self.is_last = layout.last_rank == rank
        self._recorder = Recorder(clock_offset_s=clock_offset_s)
        self._weight, self._loss_sum, self._samples_left = 1.0, 0.0, 0
        self._logits: list[Tensor | None] = []
        stages = [
            TimedStage(
                module,
                number,
                layout.num_stages,
                given=self._example(number),
                made=self._example(number + 1),
                group=group,
                recorder=self._recorder,
            )
            for number, module in modules.items()
        ]
        self._schedule = self._make_schedule(stages)
        self._predictor = Predictor(layout, modules, boundaries, micro_batch_size, group)

    @property
    def num_samples(self) -> int:
        """Maximum number of samples of a step."""
        return self.layout.micro_batches * self.micro_batch_size

    def step(
        self,
        inputs: Tensor,
        targets: Tensor,
        weight: float,
        *,
        num_samples: int | None = None,
        number: int = 0,
    ) -> StepResult:
        """Run forward and backward of one batch: adds the gradients of weight · the sum of its
        losses.

        inputs: (n, …), targets: (n,) or (n, T), the same on every rank; n from 1 to `num_samples`.
        What is missing is filled up with borrowed samples that count for nothing.
        num_samples: that count; None: all. number: of the step, for `actions`.
        Returns: the loss and the logits on ranks with the last stage; as communication what the
                 step took beyond this rank's own work: waiting, sending, receiving.
        Raises: ValueError when the samples do not fit the stages.
        """
        given, wanted = pad_batch(inputs, targets, self.num_samples, self._boundaries[0])
        self._weight, self._loss_sum, self._logits = weight, 0.0, []
        self._samples_left = len(inputs) if num_samples is None else num_samples
        self._recorder.begin(number)
        began = time.perf_counter()
        self._schedule.step(
            *((given,) if self.rank == 0 else ()), target=wanted if self.is_last else None
        )
        step_s = time.perf_counter() - began
        forward_s = self._recorder.seconds_of("forward")
        backward_s = self._recorder.seconds_of("backward", "input gradient", "weight gradient")
        logits = join_logits(self._logits)
        logits, self._logits = None if logits is None else logits[: len(inputs)], []
        return StepResult(
            self._loss_sum, logits, forward_s, backward_s, max(0.0, step_s - forward_s - backward_s)
        )

    def rehearse(self) -> None:
        """Make a step whose samples count for nothing: gradients of zero. In the first step stages
        exchange that they know their shapes, and make their buffers."""
        inputs, logits = self._boundaries[0].of(1).zero_(), self._boundaries[-1].of(1)
        targets = torch.full(logits.shape[:-1], IGNORED, dtype=torch.int64)
        self.step(inputs, targets, 1.0, num_samples=0)

    def predict(self, inputs: Tensor) -> Tensor | None:
        """(n, …, classes): the logits of `inputs`, of any number of samples, without gradients;
        None on ranks without the last stage."""
        return self._predictor.predict(inputs)

    def actions(self) -> Sequence[TimedAction]:
        """Return this rank's actions in the last step."""
        return self._recorder.actions

    def traffic(self) -> int:
        """Return the bytes that this rank sends in a step, and receives; a few more in the
        first."""
        inner = self._boundaries[1:-1]
        return step_traffic(
            self.layout, self.rank, [b.num_bytes(self.micro_batch_size) for b in inner]
        )

    def _example(self, boundary: int) -> Tensor:
        """Return the shape of a micro-batch as a meta tensor; all but the first have gradients."""
        example = self._boundaries[boundary].of(self.micro_batch_size, "meta")
        return example.requires_grad_(boundary > 0)

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted loss of one micro-batch, called in their order; part of its forward
        pass."""
        number = min(len(outputs), self._samples_left)
        self._samples_left -= number
        counted = slice(0, number or 1)  # the others are padding
        loss = self._loss_function.sum_over(outputs[counted], targets[counted], number)
        self._loss_sum += loss.item()
        self._logits.append(self._loss_function.logits(outputs))
        weighted = loss * self._weight
        self._recorder.extend()
        return weighted

    def _make_schedule(
        self, stages: list[TimedStage]
    ) -> PipelineScheduleSingle | PipelineScheduleMulti:
        micro_batches = self.layout.micro_batches
        single: dict[str, type[PipelineScheduleSingle]] = {
            "gpipe": ScheduleGPipe,
            "1f1b": Schedule1F1B,
        }
        if self.layout.schedule in single:
            kind = single[self.layout.schedule]
            return kind(stages[0], micro_batches, loss_fn=self._loss, scale_grads=False)
        several: type[PipelineScheduleMulti] = ScheduleInterleaved1F1B
        if self.layout.schedule == "zero-bubble":
            several = ScheduleZBVZeroBubble if self.layout.is_v else ScheduleInterleavedZeroBubble
        return several(list(stages), micro_batches, loss_fn=self._loss, scale_grads=False)
