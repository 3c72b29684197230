"""Local shards of a model's parameters, as plain tensors.

PyTorch's optimizers update value by value, so that they need not know which shard of a parameter a
rank holds: they are given the shards, which share their memory with the model, and serve every
mixture of replicated, split and sharded parameters with their fused kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from phalanx.parallel.costs import ParameterSpec


def local_shards(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return the local shard of each parameter: itself, or a parameter on the same memory."""
    return [
        nn.Parameter(local_shard(one), requires_grad=one.requires_grad)
        if isinstance(one, DTensor)
        else one
        for one in parameters
    ]


def local_shard(tensor: Tensor) -> Tensor:
    """Return the local shard of a DTensor, on the same memory; else the tensor itself."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    shard: Tensor = tensor.to_local().detach()
    return shard


def num_shards(parameter: nn.Parameter) -> int:
    """Return into how many shards the parameter is divided."""
    if not isinstance(parameter, DTensor):
        return 1
    sizes, placements = parameter.device_mesh.shape, parameter.placements
    return math.prod(n for n, p in zip(sizes, placements, strict=True) if not p.is_replicate())


def parameter_spec(parameter: nn.Parameter) -> ParameterSpec:
    """Describe, for `costs`, a parameter that at most tensor parallelism has divided yet."""
    placements = parameter.placements if isinstance(parameter, DTensor) else ()
    split = next((place.dim for place in placements if isinstance(place, Shard)), None)
    return ParameterSpec(shape=tuple(parameter.shape), split=split)


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of the local shard, summed over the ranks that computed parts of it;
    zeros where the loss does not reach the parameter. Collective where it is not summed yet."""
    gradient = parameter.grad
    if not isinstance(parameter, DTensor):
        return torch.zeros_like(parameter) if gradient is None else gradient
    if gradient is None:
        return torch.zeros_like(local_shard(parameter))
    assert isinstance(gradient, DTensor), "the gradient of a DTensor is one"
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return local_shard(gradient)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of a DTensor, on every rank of its mesh. Collective."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    # Axis by axis: PyTorch warns of doing two at once where both cut the same dim.
    for axis in range(tensor.device_mesh.ndim):
        placements = list(tensor.placements)
        placements[axis] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return local_shard(tensor)


def place_like(shard: Tensor, tensor: Tensor) -> Tensor:
    """Return `shard`, the local shard, as a tensor placed like `tensor`; on the same memory."""
    if not isinstance(tensor, DTensor) or shard.dim() == 0:
        return shard
    placed: Tensor = DTensor.from_local(
        shard,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return placed
