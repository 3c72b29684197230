"""Digests of a model after every step: at the speed of memory, to find where two runs part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from phalanx.checkpoints.checkpoint import bytes_of, model_tensors
from phalanx.parallel.run_group import RunGroup
from phalanx.records.events import DigestEvent, DigestNamesEvent
from phalanx.records.files import EventWriter

MAX_DIGESTS = 64
"""A step's; a model of more tensors has one for several, so that its records stay small."""
MASK, HALF_MASK = 2**64 - 1, 2**32 - 1


def digest_of(tensor: Tensor) -> int:
    """Return 64 bits that change with any single bit of the tensor: the sum of its words."""
    return sum_of_words(bytes_of(tensor))


def sum_of_words(values: NDArray[np.uint8]) -> int:
    """Return the sum of words of 8 bytes, the last filled up with zeros, modulo 2⁶⁴. values: (n,).

    Cost: one reading, at the speed of memory, and some 3 µs.
    """
    whole = len(values) // 8 * 8
    total = int(np.add.reduce(values[:whole].view(np.uint64)))
    if whole < len(values):
        total += int.from_bytes(values[whole:].tobytes(), "little")
    return total & MASK


class TensorBytes:
    """Bytes of a tensor that changes in place, found once: that takes longer than to sum few."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._place = tensor, (0, 0)
        self._bytes: NDArray[np.uint8] | None = None

    def read(self) -> NDArray[np.uint8]:
        """Return the bytes as they are now."""
        tensor = self._tensor
        place = tensor.data_ptr(), tensor.numel()
        if self._bytes is None or place != self._place:
            found = bytes_of(tensor)
            if not found.size or found.ctypes.data != place[0]:
                return found  # a copy
            self._bytes, self._place = found, place
        return self._bytes


@dataclass(frozen=True)
class DigestGroup:
    """Consecutive tensors of a model that share a digest."""

    name: str
    tensors: Sequence[tuple[int, TensorBytes]]
    """Tensors that this rank holds, with their numbers in the group."""


class ModelDigests:
    """Writes a line of digests after every step.

    Where ranks hold different tensors, each sums the words of its own, and rank 0 writes the sums
    of all: collective then.
    """

    def __init__(
        self,
        model: nn.Module,
        writer: EventWriter,
        *,
        at_s: float,
        names: Sequence[str] | None = None,
        group: RunGroup | None = None,
    ) -> None:
        """names: of the full model's tensors; None: the model has all. group: whose ranks hold
        different tensors; None: the model has all."""
        tensors = model_tensors(model)
        self._groups = group_tensors(list(tensors) if names is None else names, tensors)
        self._writer, self._group = writer, group
        digests = as_text(self.values())
        if group is None or group.rank == 0:
            names = [each.name for each in self._groups]
            writer.add(DigestNamesEvent(at_s=at_s, names=names, digests=digests))

    def add(self, step: int, at_s: float) -> None:
        """Note the digests after a step."""
        values = self.values()
        if self._group is None or self._group.rank == 0:
            self._writer.note((digest_record, at_s, step, values))

    def values(self) -> list[int]:
        """Return the digests of the model as it is."""
        own = [
            sum((2 * n + 1) * sum_of_words(tensor.read()) for n, tensor in group.tensors) & MASK
            for group in self._groups
        ]
        return own if self._group is None else sum_digests(self._group, own)


def sum_digests(group: RunGroup, own: Sequence[int]) -> list[int]:
    """Return the sums over the ranks, modulo 2⁶⁴. Collective."""
    halves = [float(half) for value in own for half in (value >> 32, value & HALF_MASK)]
    sums = list(map(int, group.sum(halves)))  # exact in float64
    return [((high << 32) + low) & MASK for high, low in zip(sums[::2], sums[1::2], strict=True)]


def digest_record(at_s: float, step: int, values: Sequence[int]) -> DigestEvent:
    """Return the event of a step's digests."""
    return DigestEvent(at_s=at_s, step=step, digests=as_text(values))


def as_text(values: Sequence[int]) -> str:
    """Return digests as 16 hexadecimal digits each."""
    return "".join(f"{value:016x}" for value in values)


def group_tensors(names: Sequence[str], held: Mapping[str, Tensor]) -> list[DigestGroup]:
    """Divide parameters and buffers into at most `MAX_DIGESTS` groups.

    names: of the full model's. held: those of this rank.
    """
    size = max(1, math.ceil(len(names) / MAX_DIGESTS))
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    return [
        DigestGroup(
            own[0] if len(own) == 1 else f"{own[0]} … {own[-1]}",
            [(n, TensorBytes(held[name])) for n, name in enumerate(own) if name in held],
        )
        for own in groups
    ]
