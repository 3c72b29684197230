"""Copies and reductions in the memory of a device.

They match the CPU kernels: terms in order, half types summed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import DType, ReduceOp
from phalanx.torch_backend.tensors import buffer_of

_FUNCTIONS: dict[ReduceOp, Callable[..., Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def can_reduce(dtype: torch.dtype) -> bool:
    """Return whether PyTorch reduces elements of `dtype` on a device; not wide unsigned ones."""
    return dtype not in _UNSIGNED


def reduce_tensors(
    terms: Sequence[Tensor], result: Tensor, op: ReduceOp, divisor: float = 1.0
) -> None:
    """result[i] = (terms[0][i] op terms[1][i] op …) / divisor; result may be one of the terms.

    Integers wrap around and are divided towards zero.
    """
    function = _FUNCTIONS[op]
    rounds = result.is_floating_point() and result.itemsize == 2
    total = terms[0].float() if rounds else terms[0]
    for term in terms[1:]:
        total = function(total, term)
    if divisor != 1.0:
        total = _divided(total, divisor)
    if total is not result:
        result.copy_(total)


def _divided(total: Tensor, divisor: float) -> Tensor:
    if total.is_complex():
        return torch.view_as_complex(_divided(torch.view_as_real(total), divisor))
    if total.is_floating_point():
        # A tensor: a number's inverse is what a GPU multiplies by, which rounds twice.
        return total / total.new_full((), divisor)
    return torch.div(total, int(divisor), rounding_mode="trunc")


class DeviceMemory:
    """The memory of a device; each buffer is a contiguous tensor, its owner, or a slice of one."""

    def __init__(self, device: torch.device, streams: Any) -> None:
        """streams: the module with the streams of the device; calls run on the current one."""
        self._device, self._streams = device, streams

    def scratch(self, count: int, dtype: DType) -> Buffer:
        torch_dtype: torch.dtype = getattr(torch, dtype.name)
        return buffer_of(torch.empty(count, dtype=torch_dtype, device=self._device))

    def copy(self, source: Buffer, dest: Buffer) -> None:
        if source.address != dest.address:
            tensor_of(dest).copy_(tensor_of(source))

    def reduce_terms(
        self, terms: Sequence[Buffer], result: Buffer, op: ReduceOp, divisor: float
    ) -> None:
        reduce_tensors([tensor_of(term) for term in terms], tensor_of(result), op, divisor)

    def finish(self) -> None:
        self._streams.current_stream(self._device).record_event().synchronize()


def tensor_of(buffer: Buffer) -> Tensor:
    """Return a (count,) view of the memory of a buffer that a tensor owns."""
    owner = buffer.owner
    assert isinstance(owner, Tensor), "buffers of a device are made of tensors"
    flat = owner.detach().view(-1)
    start = (buffer.address - owner.data_ptr()) // owner.itemsize if buffer.count else 0
    return flat[start : start + buffer.count]
