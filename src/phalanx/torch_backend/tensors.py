"""Buffers of tensors for the engine: their own memory, or a contiguous copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from phalanx.comm.buffer import Buffer, is_usable_in_place
from phalanx.comm.dtypes import dtype_of
from phalanx.comm.shm import PlainTensors


def is_alone(tensor: Tensor) -> bool:
    """Return whether no other tensor, array or storage has the memory of this one; False where this
    PyTorch cannot tell. Cost: 1 µs."""
    if not tensor.untyped_storage().resizable():
        return False  # memory of an array, of a file, of another process
    users = _num_users(tensor)
    return users is not None and users == _num_users_of_new()


def _num_users(tensor: Tensor) -> int | None:
    count: Any = getattr(torch._C, "_storage_Use_Count", None)  # torch.compile counts so
    users: int | None = count and count(tensor.untyped_storage()._cdata)
    return users


@cache
def _num_users_of_new() -> int | None:
    new = torch.empty(1)
    return _num_users(new)


def is_plain(tensor: Tensor) -> bool:
    """Return whether `tensor` needs no staging: strided, on the CPU, usable in place."""
    return tensor.is_cpu and tensor.layout is torch.strided and is_usable_in_place(tensor)


buffer_of = Buffer.of_tensor

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
"""Types of elements that are reduced as they lie: a complex tensor may be conjugated when read."""
PLAIN_TENSORS = PlainTensors(torch.strided, {dtype: dtype_of(dtype).code for dtype in DTYPES})

LEAST_BYTES = 2**16
"""Bytes of a copy that is not made by halves any more."""


def copy_by_halves(source: Tensor, dest: Tensor, factor: float | Tensor | None = None) -> None:
    """Copy source · factor, of the same shape; by halves where the device has no memory for what a
    product, or a tensor that is not contiguous, takes on the way.

    Raises: OutOfMemoryError of the smallest piece, with what was asked for at first.
    """
    try:
        dest.copy_(source if factor is None else source * factor, non_blocking=True)
    except torch.OutOfMemoryError as error:
        if dest.nbytes <= LEAST_BYTES:
            raise
        # The first dim of several, so that pieces of pinned memory are contiguous.
        dim = next(dim for dim in range(dest.dim()) if dest.size(dim) > 1)
        factors: list[float | Tensor | None] = [factor] * 2
        if isinstance(factor, Tensor) and factor.dim():
            factors = [*factor.expand_as(source).chunk(2, dim)]
        try:
            for halves in zip(source.chunk(2, dim), dest.chunk(2, dim), factors, strict=True):
                copy_by_halves(*halves)
        except torch.OutOfMemoryError:
            raise torch.OutOfMemoryError(
                f"staging a tensor of {dest.nbytes:,} bytes: {str(error).splitlines()[0]}; pieces "
                f"of {LEAST_BYTES:,} bytes found no memory either: free memory of the device, or "
                "start fewer ranks on it"
            ) from None


@dataclass
class Copies:
    """Copies before and after a call of the engine."""

    loads: list[tuple[Tensor, Tensor, float | Tensor | None]] = field(default_factory=list)
    stores: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class TensorStaging:
    """Buffers of one call, which the engine makes whole or in parts. Tensors that are not usable in
    place are staged through a copy: `load` fills the inputs, `store` copies the outputs back."""

    def __init__(self) -> None:
        self._parts = [Copies()]

    def input(self, tensor: Tensor) -> Buffer:
        return self.buffer(tensor, is_written=False)

    def output(self, tensor: Tensor) -> Buffer:
        return self.buffer(tensor, is_read=False)

    def buffer(
        self,
        tensor: Tensor,
        is_read: bool = True,
        is_written: bool = True,
        factor: float | Tensor | None = None,
        place: Tensor | None = None,
    ) -> Buffer:
        """factor: multiplies what is read; a tensor that is not written keeps its values. place: of
        the copy; None: memory of its own."""
        if factor is None and self._is_usable_in_place(tensor):
            return buffer_of(tensor)
        copy = self._allocate_copy(tensor) if place is None else place
        if is_read:
            self._parts[-1].loads.append((tensor, copy, factor))
        if is_written:
            self._parts[-1].stores.append((tensor, copy))
        return buffer_of(copy)

    def in_parts(
        self,
        tensor: Tensor,
        ranges: Sequence[range],
        is_read: bool,
        is_written: bool,
        factor: float | Tensor | None,
    ) -> list[Buffer]:
        """Return a buffer for each of `ranges` of the elements, for a call each.

        A copy is that of the whole tensor, made before the first call and after the last."""
        whole = self.buffer(tensor, is_read, is_written, factor)
        self._parts += [Copies() for _ in ranges[1:]]
        first, last = self._parts[0], self._parts[-1]
        first.stores, last.stores = last.stores, first.stores
        return [whole.part(part.start, part.stop) for part in ranges]

    def wrap(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Return the calls of all parts, with the copies before and after each."""
        first = self._parts[0]
        if len(calls) == 1 and not (first.loads or first.stores):
            return calls[0]

        def copied() -> None:
            for part, call in enumerate(calls):
                self.load(part)
                call()
                self.store(part)

        return copied

    def load(self, part: int = 0) -> None:
        with torch.no_grad():
            for tensor, copy, factor in self._parts[part].loads:
                copy_by_halves(tensor, copy, factor)

    def store(self, part: int = 0) -> None:
        with torch.no_grad():
            for tensor, copy in self._parts[part].stores:
                copy_by_halves(copy, tensor)

    def sync_stream(self) -> None:
        """Make the current stream wait for `store`, for GPU tensors."""

    def _is_usable_in_place(self, tensor: Tensor) -> bool:
        return is_usable_in_place(tensor)

    def _allocate_copy(self, tensor: Tensor) -> Tensor:
        # The default device may be another one.
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
