"""Gathering of all ranks' tensors on rank 0, one after the other, over the ranks' own messages.

So one rank alone writes a checkpoint, and no folder needs to be seen by more nodes than its own.
Rank 0 needs memory for the largest tensor beside what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from phalanx.checkpoints.tensor_file import Spec, in_file_order, raw
from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group

T = TypeVar("T")


class Box(NamedTuple):
    """A box of a tensor, and the rank that sends it."""

    rank: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))

    @property
    def num_elements(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))


class LocalBox(NamedTuple):
    """A rank's shard of a tensor."""

    code: str
    shape: tuple[int, ...]
    """Shape of the full tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class GatherPlan(NamedTuple):
    """Sender of each box of each tensor; the same on every rank."""

    specs: dict[str, Spec]
    """Specs of full tensors, in the order of the file."""
    boxes: dict[str, list[Box]]


def gather_objects(group: Group | None, value: T) -> list[T]:
    """Return every rank's `value`. Collective; group: None for a single rank.

    Costs two broadcasts per rank: for descriptions of tensors, not their bytes.
    """
    if group is None:
        return [value]
    return [group.share(value, root=rank) for rank in range(group.size)]


def make_gather_plan(group: Group | None, local: Mapping[str, LocalBox]) -> GatherPlan:
    """Decide the sender of each box of each tensor; of equal boxes the first rank's. Collective.

    Raises: RuntimeError when the boxes do not make up the tensors.
    """
    return _merge(gather_objects(group, dict(local)))


def _merge(rows: list[dict[str, LocalBox]]) -> GatherPlan:
    specs: dict[str, Spec] = {}
    by_offsets: dict[str, dict[tuple[int, ...], Box]] = {}
    for rank, row in enumerate(rows):
        for name, local in row.items():
            spec = Spec(local.code, local.shape)
            if specs.setdefault(name, spec) != spec:
                raise RuntimeError(f"{name} is {specs[name]} on one rank, and {spec} on {rank}")
            if 0 not in local.sizes:
                box = Box(rank, local.offsets, local.sizes)
                by_offsets.setdefault(name, {}).setdefault(local.offsets, box)
    plan = GatherPlan({n: specs[n] for n in in_file_order(specs)}, {})
    for name, spec in plan.specs.items():
        boxes = list(by_offsets.get(name, {}).values())
        if sum(box.num_elements for box in boxes) != spec.num_elements:
            sent = ", ".join(f"{list(box.sizes)} of rank {box.rank}" for box in boxes) or "none"
            raise RuntimeError(
                f"the parts of {name} that {len(rows)} ranks sent ({sent}) do not make up "
                f"{list(spec.shape)}"
            )
        plan.boxes[name] = boxes
    return plan


def full_tensors(
    group: Group | None, plan: GatherPlan, local: Mapping[str, Tensor]
) -> Iterator[Tensor]:
    """Yield on rank 0 the full tensors in the plan's order; elsewhere send, and yield nothing.
    Collective.

    held: what this rank has of them, by name; contiguous.
    """
    rank = 0 if group is None else group.rank
    for name, spec in plan.specs.items():
        full = None
        for box in plan.boxes[name]:
            if rank == 0 and box.sizes == spec.shape:
                full = _obtain(group, box, spec, local.get(name))
            elif rank == 0:
                full = _empty(spec.shape, spec.dtype) if full is None else full
                full[box.slices] = _obtain(group, box, spec, local.get(name))
            elif box.rank == rank:
                assert group is not None
                group.send(_buffer(local[name]), dest=0).wait()
        if rank == 0:
            yield _empty(spec.shape, spec.dtype) if full is None else full


def _obtain(group: Group | None, box: Box, spec: Spec, own: Tensor | None) -> Tensor:
    if box.rank == 0:
        assert own is not None
        return own
    assert group is not None
    received = _empty(box.sizes, spec.dtype)
    group.receive(_buffer(received), source=box.rank).wait()
    return received


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")  # whatever the default is


def _buffer(tensor: Tensor) -> Buffer:
    """Return the memory of a contiguous tensor, or of a copy in the host's memory."""
    return Buffer.of(raw(tensor.cpu()).numpy())


def gathered_by_name(
    group: Group | None, own: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Yield on rank 0, by name, the tensors of all ranks, each whole on one of them or more;
    elsewhere send, and yield nothing. Collective."""
    boxes = {
        name: LocalBox(Spec.of(one).code, tuple(one.shape), (0,) * one.dim(), tuple(one.shape))
        for name, one in own.items()
    }
    plan = make_gather_plan(group, boxes)
    plan = GatherPlan({name: plan.specs[name] for name in sorted(plan.specs)}, plan.boxes)
    held = {name: tensor.detach().contiguous() for name, tensor in own.items()}
    return zip(plan.specs, full_tensors(group, plan, held), strict=False)
