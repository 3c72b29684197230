"""Checkpoints of a model that no rank holds in full: its files are assembled from the parts of all.

The files are those of any other checkpoint, full tensors by the parameter's name, so that one that
four ranks wrote can go on under any strategy and on any number of ranks. Where all ranks share the
folder, each of many writes some of the files; else rank 0 writes all. The parts come to it as
messages. Each rank reads for itself the parts that it holds, from a folder that it must see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from phalanx.checkpoints.checkpoint import model_tensors, stored_name
from phalanx.checkpoints.gathering import GatherLayout, LocalBox, assemble, make_gather_layout
from phalanx.checkpoints.manifest import MODEL_FILE, OPTIMIZER_FILE, Manifest, verify
from phalanx.checkpoints.tensor_file import (
    CheckpointFile,
    SentParts,
    Spec,
    TensorFile,
    file_names,
    in_file_order,
    in_windows,
    read_specs,
    stored_files,
)
from phalanx.comm.group import Group
from phalanx.parallel.local_shards import local_shard, place_like
from phalanx.parallel.strategy import Strategy

Shapes = Mapping[str, tuple[int, ...]]


def gather_sharded(
    strategy: Strategy, shapes: Shapes, *, is_shared: bool
) -> tuple[list[CheckpointFile], set[int]]:
    """Return the files of model and optimizer that this rank writes or copies, and its parts of
    those of others, in the order in which all ranks come to them; and the ranks that write any.
    Collective, and so is what is done with them.

    shapes: of the full model's tensors, to which the parts are held. is_shared: all ranks share the
    folder.
    """
    parts_of = {MODEL_FILE: model_parts(strategy), OPTIMIZER_FILE: optimizer_parts(strategy)}
    group = strategy.group.checkpoint_group()
    size, files, writers = strategy.size, list[CheckpointFile](), {0}
    for name, parts in parts_of.items():
        layout = make_gather_layout(group, _local_boxes(parts), _in_files)
        if name == MODEL_FILE:
            _check_shapes(layout, shapes)
        local = {key: _plain(part) for key, part in parts.items()}
        names = file_names(name, len(layout.windows))
        ranks = writers_of(len(names), size if is_shared else 1, size)
        writers |= set(ranks)
        for first in range(0, len(names), len(ranks)):
            window_of = dict(zip(ranks, range(first, len(names)), strict=False))
            if (window := window_of.get(strategy.rank)) is None:
                files.append(SentParts(partial(assemble, group, layout, window_of, local)))
                continue
            specs = {key: layout.specs[key] for key in layout.windows[window]}
            tensors = _tensors(group, layout, window_of, local)
            files.append(TensorFile(names[window], specs, tensors))
    return files, writers


def writers_of(num_files: int, most: int, size: int) -> list[int]:
    """Return the ranks that write files, of `size` ranks `most` at most: far from each other, so
    that they are on different nodes. Rank 0 is the first. Pure."""
    number = min(num_files, most)
    return [place * size // number for place in range(number)]


def _in_files(specs: Mapping[str, Spec]) -> list[list[str]]:
    return in_windows(specs, in_file_order(specs))


def _tensors(
    group: Group | None,
    layout: GatherLayout,
    window_of: Mapping[int, int],
    local: Mapping[str, Tensor],
) -> Iterator[Tensor]:
    """Yield the tensors of this rank's window, which are assembled when the first is asked for."""
    full = assemble(group, layout, window_of, local)
    for name in list(full):
        yield full.pop(name)


def load_sharded(checkpoint: Path, strategy: Strategy) -> Manifest:
    """Put into each rank's parts what belongs there, bit for bit; no rank reads more. Needs no
    message: every rank reads for itself.

    checkpoint: of this very model, as `check_model` finds.
    Raises: UserError when a file is damaged.
    """
    manifest = verify(checkpoint)
    _read(stored_files(checkpoint, MODEL_FILE), model_parts(strategy))
    files = stored_files(checkpoint, OPTIMIZER_FILE)
    _read(files, _empty_state(read_specs(*files), strategy))
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


def _check_shapes(layout: GatherLayout, shapes: Shapes) -> None:
    """Raise RuntimeError before anything is written that is not the model."""
    found = {name: spec.shape for name, spec in layout.specs.items()}
    wrong = [n for n in {**found, **shapes} if found.get(n) != shapes.get(n)]
    if wrong:
        raise RuntimeError(
            f"the shards of the ranks do not add up to the model: {wrong[0]} is "
            f"{found.get(wrong[0], 'missing')}, not {shapes.get(wrong[0], 'part of it')}"
        )


def _read(files: Sequence[Path], into: Mapping[str, Tensor]) -> None:
    """Fill this rank's parts from their places in the full tensors."""
    missing = dict(into)
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in missing.keys() & set(tensors.keys()):
                tensor = missing.pop(name)
                sizes, offsets = _box(tensor)
                if 0 in sizes:
                    continue
                place = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
                values = tensors.get_slice(name)[place] if place else tensors.get_tensor(name)
                if tensor.is_complex():
                    values = torch.view_as_complex(values)
                local_shard(tensor).copy_(values)
    if missing:
        raise RuntimeError(f"{files[0].parent} holds no {', '.join(missing)}")


def _empty_state(specs: Mapping[str, Spec], strategy: Strategy) -> dict[str, Tensor]:
    """Make room for the state of the file, and put it into the optimizer."""
    parameters = {stored_name(name): p for name, p in strategy.model.named_parameters()}
    states = {stored_name(name): state for name, state in strategy.optimizer_state().items()}
    wanted = {}
    for key, spec in specs.items():
        name, quantity = key.rsplit(":", 1)
        if name not in states:
            continue  # another rank's
        device = parameters[name].device  # fused optimizers, as here, count steps on it
        value = torch.zeros(spec.shape, dtype=spec.dtype, device=device)
        if spec.shape and isinstance(parameters[name], DTensor):
            value = torch.zeros_like(local_shard(parameters[name]))
        elif spec.shape == tuple(parameters[name].shape):  # already in its memory order
            value = torch.zeros_like(parameters[name].detach(), dtype=spec.dtype)
        states[name][quantity] = value
        wanted[key] = place_like(value, parameters[name])
    return wanted
