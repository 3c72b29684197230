"""Gathering of all ranks' tensors on rank 0, one after the other, over the ranks' own messages.

So one rank alone writes a checkpoint, and no folder needs to be seen by more nodes than its own.
Rank 0 needs memory for the largest tensor beside what it holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.train.tensor_file import Spec, in_file_order, raw


class Piece(msgspec.Struct, frozen=True):
    """A box of a tensor, and the rank that sends it."""

    rank: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def place(self) -> tuple[slice, ...]:
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))

    @property
    def num_elements(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))


class Held(msgspec.Struct, frozen=True):
    """A rank's shard of a tensor."""

    code: str
    shape: tuple[int, ...]
    """Of the full tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class Plan(msgspec.Struct, frozen=True):
    """Sender of each box of each tensor; the same on every rank."""

    specs: dict[str, Spec]
    """Of full tensors, in the order of the file."""
    pieces: dict[str, list[Piece]]


def gather_objects(group: Group | None, value: Any, kind: Any) -> list[Any] | None:
    """Return on rank 0 every rank's `value`, which msgspec can encode; None elsewhere. Collective.

    kind: the type to decode it as. group: None for a single rank.
    """
    if group is None or group.size == 1:
        return [value]
    text = np.frombuffer(msgspec.msgpack.encode(value), np.uint8).copy()
    lengths = np.zeros((group.size, 1), np.int64)
    outputs = [Buffer.of(row) for row in lengths] if group.rank == 0 else None
    group.gather(outputs, Buffer.of(np.array([len(text)])), root=0)
    if group.rank > 0:
        group.send(Buffer.of(text), dest=0).wait()
        return None
    values = [value]
    for source in range(1, group.size):
        received = np.zeros(int(lengths[source, 0]), np.uint8)
        group.receive(Buffer.of(received), source=source).wait()
        values.append(msgspec.msgpack.decode(received.tobytes(), type=kind))
    return values


def make_plan(group: Group | None, held: Mapping[str, Held]) -> Plan:
    """Decide who sends which box of which tensor; of equal ones the first rank's. Collective.

    Raises: RuntimeError on rank 0 when the boxes do not make up the tensors.
    """
    rows = gather_objects(group, dict(held), dict[str, Held])
    plan = None if rows is None else _merged(rows)
    if group is None or group.size == 1:
        assert plan is not None
        return plan
    text = group.share(b"" if plan is None else msgspec.msgpack.encode(plan))
    return msgspec.msgpack.decode(text, type=Plan)


def _merged(rows: list[dict[str, Held]]) -> Plan:
    specs: dict[str, Spec] = {}
    pieces: dict[str, dict[tuple[int, ...], Piece]] = {}
    for rank, row in enumerate(rows):
        for name, held in row.items():
            spec = Spec(held.code, held.shape)
            if specs.setdefault(name, spec) != spec:
                raise RuntimeError(f"{name} is {specs[name]} on one rank, and {spec} on {rank}")
            if 0 not in held.sizes:
                piece = Piece(rank, held.offsets, held.sizes)
                pieces.setdefault(name, {}).setdefault(held.offsets, piece)
    plan = Plan({n: specs[n] for n in in_file_order(specs)}, {})
    for name, spec in plan.specs.items():
        boxes = list(pieces.get(name, {}).values())
        if sum(box.num_elements for box in boxes) != spec.num_elements:
            raise RuntimeError(f"the ranks' parts of {name} do not make up {list(spec.shape)}")
        plan.pieces[name] = boxes
    return plan


def full_tensors(group: Group | None, plan: Plan, held: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Yield on rank 0 the full tensors in the plan's order; elsewhere send, and yield nothing.
    Collective.

    held: what this rank has of them, by name; contiguous.
    """
    rank = 0 if group is None else group.rank
    for name, spec in plan.specs.items():
        full = None
        for piece in plan.pieces[name]:
            if rank == 0 and piece.sizes == spec.shape:
                full = _obtain(group, piece, spec, held.get(name))
            elif rank == 0:
                full = torch.empty(spec.shape, dtype=spec.dtype) if full is None else full
                full[piece.place] = _obtain(group, piece, spec, held.get(name))
            elif piece.rank == rank:
                assert group is not None
                group.send(_buffer(held[name]), dest=0).wait()
        if rank == 0:
            yield torch.empty(spec.shape, dtype=spec.dtype) if full is None else full


def _obtain(group: Group | None, piece: Piece, spec: Spec, own: Tensor | None) -> Tensor:
    if piece.rank == 0:
        assert own is not None
        return own
    assert group is not None
    received = torch.empty(piece.sizes, dtype=spec.dtype)
    group.receive(_buffer(received), source=piece.rank).wait()
    return received


def _buffer(tensor: Tensor) -> Buffer:
    return Buffer.of(raw(tensor).numpy())
