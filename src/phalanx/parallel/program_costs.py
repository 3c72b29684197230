"""Costs of a model part by part, as strategies divide it: layers of a pipeline, units of ZeRO,
messages of tensor parallelism; when gradients are ready, and what backward passes need.

Measured in a process of one rank, beside its steps. Parts are plain values by the names of
`plan.profile.ProgramCosts`; a model that has no such parts says why.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from phalanx.errors import UserError
from phalanx.models.user_function import users_code
from phalanx.parallel.costs import ParameterSpec
from phalanx.parallel.pipeline.chain import check_chain, check_shared, layers_of
from phalanx.parallel.pipeline.mesh_stage import MeshStage
from phalanx.parallel.pipeline.messages import Handover
from phalanx.parallel.pipeline.pipelined import time_passes
from phalanx.parallel.pipeline.staged import check_statistics
from phalanx.parallel.sharding import parameters_by_unit, units_of
from phalanx.parallel.tensor import split_dims, split_traffic, tensor_plan_of

SHARES = (1, 8, 64)
"""Parts of a batch on which layers are timed: from all of it to about the smallest micro-batch."""
PASSES = ("forward_s", "input_s", "weight_s", "input_half_s", "weight_half_s")
"""Times of a layer, see `plan.profile.LayerTime`."""
REPEATS, MOST_REPEATS = 5, 15
"""Passes on the whole batch, and most on a part of it, after one that warms up."""


def measure_costs(model: nn.Module, inputs: object) -> dict[str, Any]:
    """Return what strategies that divide the model need to know of it. Parameters keep their
    gradients, and buffers their values. inputs: of a micro-batch, (n, …)."""
    dims: Mapping[nn.Parameter, int] = {}
    found: dict[str, Any] = {}
    try:
        table = tensor_plan_of(model)
        dims = split_dims(model, table)
        found["split"] = split_traffic(model, sequence_parallel=False)
        if found["split"] is None:
            found["no_split"] = (
                "nobody has counted the messages of its plan: it has no split_traffic"
            )
    except UserError as error:
        found["no_split"] = str(error)
    try:
        found["units"] = _units(model, dims)
    except UserError as error:
        found["no_units"] = str(error)
    buffers = {buffer: buffer.clone() for buffer in model.buffers()}
    try:
        with users_code("its layers, called one by one"):
            found["layers"] = _layers(model, inputs)
    except UserError as error:
        found["no_layers"] = str(error)
    for buffer, values in buffers.items():
        buffer.copy_(values)
    return found


def _units(model: nn.Module, dims: Mapping[nn.Parameter, int]) -> dict[str, list[ParameterSpec]]:
    """Return the parameters that are gathered together, by module; "" has those of none."""
    check_shared(units_of(model), "sharding")
    return {
        name: [ParameterSpec(shape=tuple(p.shape), split=dims.get(p)) for p in parameters]
        for name, parameters in parameters_by_unit(model).items()
        if parameters
    }


def _layers(model: nn.Module, inputs: object) -> list[dict[str, Any]]:
    """Return the layers of the chain that a pipeline cuts, with their times.

    Raises: UserError for a model that it cannot cut.
    """
    layers = layers_of(model)
    check_statistics(model)
    if not isinstance(inputs, Tensor):
        raise UserError(
            "a pipeline's first stage takes one tensor, but the inputs of a batch are of type "
            f"{type(inputs).__name__}"
        )
    check_chain(model, layers, inputs[:1], is_exact=False)
    numbers = sorted({max(1, len(inputs) // share) for share in SHARES})
    times = [_times(layers, inputs[:number], len(inputs)) for number in numbers]
    saved = SavedTensors((*model.parameters(), *model.buffers()))
    given, found = inputs.clone(), []
    for (name, layer), of_layer in zip(layers.items(), zip(*times, strict=True), strict=True):
        before = saved.num_bytes
        with saved.counted():
            given = layer(given)
        found.append(
            {
                "name": name,
                "parameter_bytes": sum(parameter.nbytes for parameter in layer.parameters()),
                "output_bytes": given.nbytes // len(inputs),
                "saved_bytes": (saved.num_bytes - before) // len(inputs),
                "times": of_layer,
            }
        )
    return found


def _times(layers: Mapping[str, nn.Module], samples: Tensor, whole: int) -> list[dict[str, float]]:
    """Return the median passes of each layer. whole: samples of the batch that these are of."""
    repeats = min(MOST_REPEATS, REPEATS * whole // len(samples))
    rows = [_row(layers.values(), samples) for _ in range(repeats + 1)][1:]
    times = []
    for of_layer in zip(*rows, strict=True):
        medians = map(statistics.median, zip(*of_layer, strict=True))
        times.append({"samples": len(samples), **dict(zip(PASSES, medians, strict=True))})
    return times


def _row(layers: Iterable[nn.Module], samples: Tensor) -> list[tuple[float, ...]]:
    """Return the seconds of `PASSES` through each layer. Those before the first trained one need no
    gradient of inputs."""
    given = samples
    row: list[tuple[float, ...]] = []
    for layer in layers:
        trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
        inputs = [given] if given.requires_grad else []
        passes = time_passes(layer, given, [*inputs, *trained])
        input_s = passes.backward_s if inputs else 0.0
        if inputs and trained:
            input_s = min(input_s, time_passes(layer, given, inputs).backward_s)
        both = input_s, passes.backward_s - input_s
        halves = _halves(layer, given, passes.output) if inputs and trained else both
        row.append((passes.forward_s, *both, *halves))
        given = passes.output.detach().requires_grad_(passes.output.requires_grad)
    return row


def _halves(layer: nn.Module, given: Tensor, output: Tensor) -> tuple[float, float]:
    """Return the seconds of the two halves of a backward pass, as a pipeline computes them."""
    gradients = {parameter: parameter.grad for parameter in layer.parameters()}
    stage = MeshStage(layer)
    stage.forward(0, Handover(given.detach().clone(), requires_grad=True))
    began_s = time.thread_time()
    stage.backward_input(0, torch.ones_like(output))
    middle_s = time.thread_time()
    stage.backward_weights(0)
    ended_s = time.thread_time()
    for parameter, gradient in gradients.items():
        parameter.grad = gradient
    return middle_s - began_s, ended_s - middle_s


class SavedTensors:
    """Bytes of tensors that forward passes keep for backward passes, each storage once."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """known: tensors that the model has in any case, which do not count."""
        self.num_bytes = 0
        self._kept = list(known)  # so that the place of none is used again
        self._seen = {tensor.untyped_storage().data_ptr() for tensor in self._kept}

    def counted(self) -> saved_tensors_hooks:
        """Return a block whose forward passes are counted."""
        return saved_tensors_hooks(self._note, lambda tensor: tensor)

    def _note(self, tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._seen:
                self._seen.add(storage.data_ptr())
                self._kept.append(tensor)
                self.num_bytes += storage.nbytes()
        return tensor


class ReadyGradients:
    """Times at which each gradient of a program's steps is ready, by hooks of its own."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._now: dict[int, list[float]] = {}
        self._shares: dict[int, list[float]] = {}
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._noting(number))
            for number, parameter in enumerate(self._parameters)
        ]

    def _noting(self, number: int) -> Callable[[Tensor], None]:
        return lambda _: self._now.setdefault(number, []).append(time.perf_counter())

    def end_step(self, backward_s: float) -> None:
        """Take the last backward pass of a step. backward_s: seconds of all of them."""
        now, self._now = self._now, {}
        if not now or not backward_s:
            return
        passes_s = backward_s / max(map(len, now.values()))
        last = max(times[-1] for times in now.values())
        for number, times in now.items():
            share = min(1.0, max(0.0, 1 - (last - times[-1]) / passes_s))
            self._shares.setdefault(number, []).append(share)

    def close(self) -> list[dict[str, float]]:
        """Return bytes and share of the backward pass of each gradient, in their order."""
        for handle in self._handles:
            handle.remove()
        ready = {number: statistics.median(shares) for number, shares in self._shares.items()}
        return [
            {"bytes": self._parameters[number].nbytes, "ready": round(ready[number], 4)}
            for number in sorted(ready, key=lambda number: ready[number])
        ]
