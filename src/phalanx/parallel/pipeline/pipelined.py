"""Strategies whose ranks hold stages of the model, and the measured cost of its layers."""

from __future__ import annotations

import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.parallel.optimizer import OptimizerSource
from phalanx.parallel.pipeline.boundaries import boundary_of_samples
from phalanx.parallel.pipeline.chain import check_chain, layers_of
from phalanx.parallel.pipeline.engine import LossOf, Pipeline
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.messages import StageMessages
from phalanx.parallel.pipeline.stage import Stage, one_tensor
from phalanx.parallel.strategy import Strategy
from phalanx.records.events import ActionEvent
from phalanx.torch_backend.threads import naming_operations


class Pipelined(Strategy):
    """Strategy whose ranks hold stages of the model, cut where these cost alike."""

    makes_steps = True
    _world: World
    _layout: PipelineLayout
    _layer_names: Sequence[str] | None
    _micro_batch_size: int
    _pipeline: Pipeline

    def _measure(
        self, model: nn.Module, *, is_exact: bool
    ) -> tuple[dict[str, nn.Module], Tensor, list[float]]:
        """Return the layers of the model, samples of a micro-batch, and the seconds of each layer.
        is_exact: as of `check_chain`. Collective."""
        layers = layers_of(model, self._layer_names)
        samples = boundary_of_samples(self.sample, model).of(self._micro_batch_size).zero_()
        if self.sample is not None:
            check_chain(model, layers, self.sample, is_exact=is_exact)
        return layers, samples, costs_on_all_ranks(self._world, list(layers.values()), samples)

    def prepare(self, model: nn.Module, rule: OptimizerSource) -> None:
        super().prepare(model, rule)
        self.module = StagedModel(self.predict_everywhere)

    def _make_pipeline(
        self, rank: int, stages: Mapping[int, Stage], messages: StageMessages, loss_of: LossOf
    ) -> Pipeline:
        """rank, stages: as of `Pipeline`. Collective."""
        offset_s = self.group.clock().offset_ns / 1e9
        return Pipeline(
            self._layout, rank, stages, messages, loss_of=loss_of, clock_offset_s=offset_s
        )

    @abstractmethod
    def predict_everywhere(self, inputs: Tensor) -> Tensor:
        """Return the outputs for `inputs` on every rank of the pipeline."""

    def synchronize_buffers(self) -> None:
        """Do nothing: each is one rank's, and the same after every step, or there is none."""

    def actions(self) -> Sequence[ActionEvent]:
        return self._pipeline.recorded_actions()


class StagedModel(nn.Module):
    """The whole model for evaluations: every rank of a pipeline calls it with the same inputs, and
    gets its outputs."""

    def __init__(self, predict: Callable[[Tensor], Tensor]) -> None:
        """predict: returns the outputs for inputs on every rank of the pipeline. Collective."""
        super().__init__()
        self._predict = predict

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs. Raises: UserError where gradients are wanted."""
        if torch.is_grad_enabled():
            raise UserError(
                "a pipeline computes forward pass, loss and backward pass in one call: use "
                "run.step(batch, loss) in place of run.model and run.backward"
            )
        return self._predict(inputs)


def measured_costs(
    layers: Sequence[nn.Module], samples: Tensor, *, repeats: int = 5
) -> list[float]:
    """Measure the seconds of the forward and backward pass of each layer of a chain, the median of
    `repeats` after one that warms up. Parameters keep their gradients, and buffers their values.

    Seconds in which this thread computed, so that others on the machine do not move the cuts; of a
    layer on several threads it is the part of one.

    samples: (n, …), what a micro-batch is.
    """
    buffers = [buffer for layer in layers for buffer in layer.buffers()]
    before = [buffer.clone() for buffer in buffers]
    rows = [_seconds(layers, samples) for _ in range(repeats + 1)][1:]
    for buffer, values in zip(buffers, before, strict=True):
        buffer.copy_(values)
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _seconds(layers: Sequence[nn.Module], samples: Tensor) -> list[float]:
    given, row = samples, []
    for layer in layers:
        given = given.detach().requires_grad_(given.is_floating_point())
        parameters = [p for p in layer.parameters() if p.requires_grad]
        passes = time_passes(layer, given, [t for t in (given, *parameters) if t.requires_grad])
        row.append(passes.forward_s + passes.backward_s)
        given = passes.output
    return row


class LayerPasses(NamedTuple):
    """One forward and backward pass of a layer, in seconds in which this thread computed."""

    output: Tensor
    forward_s: float
    backward_s: float


def time_passes(layer: nn.Module, given: Tensor, wanted: Sequence[Tensor]) -> LayerPasses:
    """Time the passes of a layer by itself. wanted: tensors whose gradients the backward pass
    computes; none: there is no backward pass."""
    copied = given.clone()  # a layer may change it in place
    began = time.thread_time()
    output = one_tensor(layer(copied))
    middle = time.thread_time()
    if wanted and output.requires_grad:
        ones = torch.ones_like(output)
        torch.autograd.grad(output, wanted, ones, allow_unused=True)
    return LayerPasses(output, middle - began, time.thread_time() - middle)


def costs_on_all_ranks(world: World, layers: Sequence[nn.Module], samples: Tensor) -> list[float]:
    """Return the costs that rank 0 measures, on all ranks: they must cut alike.

    Collective. The others wait, so that the measuring rank has the machine for itself.
    """
    costs: list[float] = []
    if world.rank == 0:
        with naming_operations():
            costs = measured_costs(layers, samples)
    return world.share(costs)
