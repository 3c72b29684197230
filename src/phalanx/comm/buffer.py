"""A place in memory that collectives read and write, wherever it came from."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.comm.dtypes import UINT8, DType, dtype_of


def is_usable_in_place(tensor: Any) -> bool:
    """Return whether the memory of a strided CPU tensor of PyTorch may be used without a copy."""
    return bool(
        tensor.is_contiguous()
        and not tensor.is_neg()  # a view that is negated, or conjugated, only when it is read
        and not (tensor.is_complex() and tensor.is_conj())
    )


class Buffer:
    """`count` elements of `dtype`, one after the other, from `address` on.

    The address is of this process. `owner` is what must stay alive while the buffer is in use.
    Not to be changed; not a frozen dataclass, because making one is on the way of every collective
    and would take five times as long.
    """

    __slots__ = ("address", "count", "dtype", "owner")

    def __init__(self, address: int, count: int, dtype: DType, owner: object = None) -> None:
        self.address, self.count, self.dtype, self.owner = address, count, dtype, owner

    def __repr__(self) -> str:
        return f"Buffer({self.count} of {self.dtype.name} at {self.address:#x})"

    @classmethod
    def of(cls, values: Any) -> Buffer:
        """Wrap a C-contiguous NumPy array, or a tensor on the CPU; ValueError for any other."""
        if not isinstance(values, np.ndarray):
            if not (values.is_cpu and is_usable_in_place(values)):
                raise ValueError("the tensor must be contiguous, on the CPU, and no lazy view")
            return cls.of_tensor(values)
        if not values.flags.c_contiguous:
            raise ValueError("the array must be C-contiguous")
        return cls(values.ctypes.data, values.size, dtype_of(values.dtype), values)

    @classmethod
    def of_tensor(cls, tensor: Any) -> Buffer:
        """Wrap the memory of a contiguous tensor, on any device. Raises TypeError when it has none,
        as a fake tensor or a wrapper such as DTensor."""
        address, count = tensor.data_ptr(), tensor.numel()
        if not address and count:
            kind = type(tensor).__name__
            raise TypeError(f"a {kind} has no memory; pass a plain tensor")
        return cls(address, count, dtype_of(tensor.dtype), tensor)

    @property
    def num_bytes(self) -> int:
        return self.count * self.dtype.itemsize

    def part(self, start: int, stop: int) -> Buffer:
        """Elements [start, stop)."""
        address = self.address + start * self.dtype.itemsize
        return Buffer(address, stop - start, self.dtype, self.owner)

    def bytes(self) -> NDArray[np.uint8]:
        """(num_bytes,) view of the memory."""
        if not self.num_bytes:
            return np.empty(0, np.uint8)
        memory = (ctypes.c_ubyte * self.num_bytes).from_address(self.address)
        return np.ctypeslib.as_array(memory)

    def array(self) -> NDArray[Any]:
        """(count,) view in NumPy's type of the elements.

        Raises: TypeError when NumPy has none (bfloat16, opaque types).
        """
        if self.dtype.numpy is None:
            raise TypeError(f"NumPy has no {self.dtype.name}")
        return self.bytes().view(self.dtype.numpy)

    def opaque(self) -> Buffer:
        """The same memory as plain bytes."""
        return Buffer(self.address, self.num_bytes, UINT8, self.owner)
