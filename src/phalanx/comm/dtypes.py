"""Data types of buffers, and the reductions that each supports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import numpy as np


class ReduceOp(IntEnum):
    """Reduction operation. The numbers are those of the C kernels."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
    BAND = 4
    BOR = 5
    BXOR = 6


Kind = Literal["float", "int", "bool", "complex", "opaque"]


@dataclass(frozen=True)
class DType:
    """One type of element. `code` is its number in the C kernels."""

    name: str
    code: int
    itemsize: int
    kind: Kind
    numpy: np.dtype[Any] | None
    """None where NumPy has no such type: bfloat16, and the opaque types."""

    @property
    def is_half(self) -> bool:
        """Summed in float32 and rounded once."""
        return self.kind == "float" and self.itemsize == 2


def _dtype(name: str, code: int, kind: Kind) -> DType:
    numpy = np.dtype(name)
    return DType(name, code, numpy.itemsize, kind, numpy)


FLOAT32 = _dtype("float32", 0, "float")
FLOAT64 = _dtype("float64", 1, "float")
FLOAT16 = _dtype("float16", 2, "float")
BFLOAT16 = DType("bfloat16", 3, 2, "float", None)
INT8 = _dtype("int8", 4, "int")
INT16 = _dtype("int16", 5, "int")
INT32 = _dtype("int32", 6, "int")
INT64 = _dtype("int64", 7, "int")
UINT8 = _dtype("uint8", 8, "int")
UINT16 = _dtype("uint16", 9, "int")
UINT32 = _dtype("uint32", 10, "int")
UINT64 = _dtype("uint64", 11, "int")
BOOL = _dtype("bool", 12, "bool")
COMPLEX64 = _dtype("complex64", 13, "complex")
COMPLEX128 = _dtype("complex128", 14, "complex")

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        *(FLOAT32, FLOAT64, FLOAT16, BFLOAT16),
        *(INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64),
        *(BOOL, COMPLEX64, COMPLEX128),
    )
}

OPAQUE_CODE = 15


def opaque(name: str, itemsize: int) -> DType:
    """A type that can be moved but not reduced, such as float8_e4m3fn."""
    return DType(name, OPAQUE_CODE, itemsize, "opaque", None)


_ARITHMETIC = {ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX}
_BITWISE = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}
_OPERATIONS: dict[Kind, set[ReduceOp]] = {
    "float": _ARITHMETIC,
    "int": _ARITHMETIC | _BITWISE,
    "bool": _BITWISE | {ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX},
    "complex": {ReduceOp.SUM, ReduceOp.PRODUCT},
    "opaque": set(),
}


def check_operation(dtype: DType, op: ReduceOp) -> None:
    """Raises TypeError when elements of `dtype` have no such reduction."""
    allowed = _OPERATIONS[dtype.kind]
    if op not in allowed:
        names = ", ".join(o.name for o in ReduceOp if o in allowed) or "none: it can only be moved"
        raise TypeError(f"{dtype.name} has no reduction {op.name}; it has {names}")
