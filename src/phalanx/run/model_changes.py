"""Changes of a run to the calls of its model: `torch.nn.SyncBatchNorm` on the CPU, with statistics
of the global batch on all ranks, and forward passes in a smaller type."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from phalanx.errors import UserError
from phalanx.parallel.run_group import RunGroup
from phalanx.run.batch import MicroBatch
from phalanx.run.device import CPU


def has_sync_batch_norm(model: nn.Module) -> bool:
    """Return whether a layer wants statistics of the global batch."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


def check_sync_batch_norm(model: nn.Module, micro_batches: int, num_ranks: int) -> None:
    """Raise UserError where a global batch is not computed at once by all ranks."""
    if micro_batches != num_ranks and has_sync_batch_norm(model):
        raise UserError(
            "the model has SyncBatchNorm, which needs the statistics of the global batch, but "
            f"micro_batches={micro_batches} are computed one after the other on {num_ranks} "
            f"rank{'s' * (num_ranks > 1)}: leave micro_batches= out, or use BatchNorm"
        )


class BatchNormSync:
    """Sums of a model's layers over the ranks: one collective a layer in the forward pass,
    and one in the backward pass.

    PyTorch's own forward pass of these layers wants GPUs; theirs is replaced until `close`.
    """

    def __init__(self, model: nn.Module, group: RunGroup) -> None:
        self._group, self.counts = group, True
        self._layers = [m for m in model.modules() if isinstance(m, nn.SyncBatchNorm)]
        for layer in self._layers:
            layer.forward = partial(self._forward, layer)  # type: ignore[method-assign]

    def begin(self, batch: MicroBatch) -> None:
        """Note whether the samples of the micro-batch count; those of padding do not."""
        self.counts = batch.num_samples > 0

    def close(self) -> None:
        """Give the layers their own forward pass back."""
        for layer in self._layers:
            del layer.forward

    def sum(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return the sums of float64 vectors over the ranks. Collective."""
        sums = torch.tensor(
            self._group.sum(torch.cat(parts).tolist()), dtype=torch.float64, device="cpu"
        )
        return tuple(torch.split(sums, [len(part) for part in parts]))

    def _forward(self, layer: nn.SyncBatchNorm, inputs: Tensor) -> Tensor:
        layer._check_input_dim(inputs)
        mean, variance = layer.running_mean, layer.running_var
        if not layer.training and mean is not None:
            return F.batch_norm(inputs, mean, variance, layer.weight, layer.bias, eps=layer.eps)
        normalize: Any = _Normalize.apply
        outputs, batch_mean, batch_variance, count = normalize(
            inputs, layer.weight, layer.bias, mean, layer.eps, self
        )
        if layer.training and mean is not None and variance is not None:
            _update_statistics(layer, batch_mean, batch_variance * count / max(1, count - 1))
        result: Tensor = outputs
        return result


@torch.no_grad()
def _update_statistics(layer: nn.SyncBatchNorm, mean: Tensor, variance: Tensor) -> None:
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked += 1
    rate = layer.momentum
    if rate is None:
        rate = 1 / float(layer.num_batches_tracked)
    for running, current in ((layer.running_mean, mean), (layer.running_var, variance)):
        assert running is not None
        running.lerp_(current.to(running.dtype), rate)


class _Normalize(torch.autograd.Function):
    """Normalisation by the statistics of all ranks.

    Source: Ioffe & Szegedy 2015, arXiv:1502.03167.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        center: Tensor | None,
        eps: float,
        sync: BatchNormSync,
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        dims = [dim for dim in range(inputs.dim()) if dim != 1]
        shape = [1, -1, *[1] * (inputs.dim() - 2)]
        wide = inputs.double()
        if center is not None:  # near the mean: squares lose less, and all ranks have the same
            wide = wide - center.double().view(shape)
        own = float(sync.counts)  # padding counts nothing
        size = torch.tensor(
            [own * inputs.numel() / inputs.shape[1]], dtype=torch.float64, device="cpu"
        )
        total, squares, count = sync.sum(own * wide.sum(dims), own * wide.square().sum(dims), size)
        mean = total / count
        variance = (squares / count - mean.square()).clamp_min(0)
        scale = (variance + eps).rsqrt()
        normal = ((wide - mean.view(shape)) * scale.view(shape)).to(inputs.dtype)
        if center is not None:
            mean = mean + center.double()
        outputs = normal
        if weight is not None:
            outputs = outputs * weight.view(shape)
        if bias is not None:
            outputs = outputs + bias.view(shape)
        ctx.save_for_backward(normal, weight, scale)
        ctx.sync, ctx.counts, ctx.count, ctx.dims, ctx.shape = sync, own, count, dims, shape
        ctx.mark_non_differentiable(mean, variance)
        return outputs, mean, variance, float(count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        normal, weight, scale = ctx.saved_tensors
        of_bias = gradient.sum(ctx.dims)
        of_weight = (gradient * normal).sum(ctx.dims)
        if weight is not None:
            gradient = gradient * weight.view(ctx.shape)
        total, products = ctx.sync.sum(
            gradient.double().sum(ctx.dims), (gradient * normal).double().sum(ctx.dims)
        )
        shared = (total.view(ctx.shape) + normal * products.view(ctx.shape)) / ctx.count
        of_inputs = (gradient - ctx.counts * shared) * scale.view(ctx.shape)
        needs = ctx.needs_input_grad
        return (
            of_inputs.to(normal.dtype) if needs[0] else None,
            of_weight if needs[1] else None,
            of_bias if needs[2] else None,
            *[None] * 3,
        )


class Autocast:
    """Calls of a model under `torch.autocast`, also in evaluations. What it returns in that type
    is float32 again, so that losses are computed in it."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._dtype, self._device = dtype, next(model.parameters()).device.type
        self._open: list[torch.autocast] = []
        self._hooks = [
            model.register_forward_pre_hook(self._enter, prepend=True),
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, *_: Any) -> None:
        context = torch.autocast(self._device, dtype=self._dtype)
        context.__enter__()
        self._open.append(context)

    def _leave(self, _module: nn.Module, _inputs: Any, outputs: Any) -> Any:
        self._open.pop().__exit__(None, None, None)
        return tree_map(self._widen, outputs)

    def _widen(self, value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.dtype == self._dtype else value


class ModelChanges(NamedTuple):
    """Changes of a run to the calls of its model."""

    batch_norm: BatchNormSync | None
    """Statistics of the model's synchronized layers, if it has some."""
    end: Callable[[], None]
    """Gives the model its own calls back; later calls do nothing."""

    @classmethod
    def of(
        cls, model: nn.Module, group: RunGroup, device: torch.device, dtype: torch.dtype | None
    ) -> ModelChanges:
        """Make the changes. dtype: of forward passes; None: the model's own."""
        batch_norm = None
        with ExitStack() as changes:
            if dtype is not None:
                changes.callback(Autocast(model, dtype).close)
            if device == CPU and has_sync_batch_norm(model):
                batch_norm = BatchNormSync(model, group)
                changes.callback(batch_norm.close)
            return cls(batch_norm, changes.pop_all().close)
