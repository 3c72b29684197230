"""Checkpoints of a model that no rank holds in full: written by rank 0 from the parts of all.

The files are those of any other checkpoint, full tensors by the parameter's name, so that one that
four ranks wrote can go on under any strategy and on any number of ranks. The parts come to rank 0
as messages, tensor by tensor: the folder need not be shared by the nodes. Each rank reads for
itself the parts that it holds, from a folder that it must see.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from phalanx.checkpoints.checkpoint import model_tensors, stored_name
from phalanx.checkpoints.contents import CheckpointFile, TensorFile
from phalanx.checkpoints.gathering import GatherPlan, LocalBox, full_tensors, make_gather_plan
from phalanx.checkpoints.manifest import MODEL_FILE, OPTIMIZER_FILE, Manifest, verify
from phalanx.checkpoints.tensor_file import Spec, read_specs
from phalanx.parallel.local_shards import local_shard, place_like
from phalanx.parallel.strategy import Strategy

Shapes = Mapping[str, tuple[int, ...]]


def gather_sharded(strategy: Strategy, shapes: Shapes) -> list[CheckpointFile]:
    """Return on rank 0 the files of model and optimizer, to be written or copied in their order,
    while the others send; elsewhere none. Collective.

    shapes: of the full model's tensors, to which the parts are held.
    """
    parts_of = {MODEL_FILE: model_parts(strategy), OPTIMIZER_FILE: optimizer_parts(strategy)}
    group = strategy.group.checkpoint_group()
    plans = {name: make_gather_plan(group, _local_boxes(parts)) for name, parts in parts_of.items()}
    streams = {
        name: full_tensors(group, plans[name], {key: _plain(part) for key, part in parts.items()})
        for name, parts in parts_of.items()
    }
    if strategy.rank > 0:
        for stream in streams.values():
            for _ in stream:
                pass
        return []
    _check_shapes(plans, shapes)
    return [TensorFile(name, plans[name].specs, stream) for name, stream in streams.items()]


def load_sharded(checkpoint: Path, strategy: Strategy) -> Manifest:
    """Put into each rank's parts what belongs there, bit for bit; no rank reads more. Needs no
    message: every rank reads for itself.

    checkpoint: of this very model, as `check_model` finds.
    Raises: UserError when a file is damaged.
    """
    manifest = verify(checkpoint)
    _read(checkpoint / MODEL_FILE, model_parts(strategy))
    state = _empty_state(read_specs(checkpoint / OPTIMIZER_FILE), strategy)
    _read(checkpoint / OPTIMIZER_FILE, state)
    return manifest


def model_parts(strategy: Strategy) -> dict[str, Tensor]:
    """Return what this rank holds of the parameters and buffers, by name."""
    return {name: tensor.detach() for name, tensor in model_tensors(strategy.model).items()}


def optimizer_parts(strategy: Strategy) -> dict[str, Tensor]:
    """Return what this rank keeps of the optimizer's state, by `<parameter>:<quantity>`."""
    parameters = dict(strategy.model.named_parameters())
    return {
        f"{stored_name(name)}:{quantity}": place_like(value, parameters[name])
        for name, state in strategy.optimizer_state().items()
        for quantity, value in state.items()
        if isinstance(value, Tensor)
    }


def _local_boxes(parts: Mapping[str, Tensor]) -> dict[str, LocalBox]:
    boxes = {}
    for name, tensor in parts.items():
        sizes, offsets = _box(tensor)
        boxes[name] = LocalBox(Spec.of(tensor).code, tuple(tensor.shape), offsets, sizes)
    return boxes


def _box(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and offsets of this rank's part within the full tensor."""
    if not isinstance(tensor, DTensor):
        return tuple(tensor.shape), (0,) * tensor.dim()
    sizes, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(map(int, sizes)), tuple(map(int, offsets))


def _plain(part: Tensor) -> Tensor:
    return local_shard(part).contiguous()


def _check_shapes(plans: Mapping[str, GatherPlan], shapes: Shapes) -> None:
    """Raise RuntimeError before anything is written that is not the model."""
    found = {name: spec.shape for name, spec in plans[MODEL_FILE].specs.items()}
    wrong = [n for n in {**found, **shapes} if found.get(n) != shapes.get(n)]
    if wrong:
        raise RuntimeError(
            f"the ranks' parts are not the model: {wrong[0]} is {found.get(wrong[0], 'missing')}, "
            f"not {shapes.get(wrong[0], 'part of it')}"
        )


def _read(file: Path, into: Mapping[str, Tensor]) -> None:
    """Fill this rank's parts from their places in the full tensors."""
    with safe_open(file, framework="pt") as tensors:
        for name, tensor in into.items():
            sizes, offsets = _box(tensor)
            if 0 in sizes:
                continue
            place = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
            values = tensors.get_slice(name)[place] if place else tensors.get_tensor(name)
            if tensor.is_complex():
                values = torch.view_as_complex(values)
            local_shard(tensor).copy_(values)


def _empty_state(specs: Mapping[str, Spec], strategy: Strategy) -> dict[str, Tensor]:
    """Make room for the state of the file, and put it into the optimizer."""
    parameters = {stored_name(name): p for name, p in strategy.model.named_parameters()}
    states = {stored_name(name): state for name, state in strategy.optimizer_state().items()}
    wanted = {}
    for key, spec in specs.items():
        name, quantity = key.rsplit(":", 1)
        if name not in states:
            continue  # another rank's
        device = parameters[name].device  # where fused optimizers, which these are, count steps
        value = torch.zeros(spec.shape, dtype=spec.dtype, device=device)
        if spec.shape and isinstance(parameters[name], DTensor):
            value = torch.zeros_like(local_shard(parameters[name]))
        elif spec.shape == tuple(parameters[name].shape):  # in its order in memory
            value = torch.zeros_like(parameters[name].detach(), dtype=spec.dtype)
        states[name][quantity] = value
        wanted[key] = place_like(value, parameters[name])
    return wanted
