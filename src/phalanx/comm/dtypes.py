"""Data types of buffers, and the reductions that each supports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from functools import cache
from typing import Any, Literal

import numpy as np

from phalanx.comm.compiled import kernel_names

_DTYPE_NAMES, _OP_NAMES = kernel_names("DTYPES"), kernel_names("OPS")


class ReduceOp(IntEnum):
    """Reduction operation. The numbers are those of the C kernels, where they were built."""

    @staticmethod
    def _generate_next_value_(name: str, _: int, count: int, __: list[Any]) -> int:
        return _OP_NAMES.index(name) if _OP_NAMES else count

    SUM = auto()
    PRODUCT = auto()
    MIN = auto()
    MAX = auto()
    BAND = auto()
    BOR = auto()
    BXOR = auto()


Kind = Literal["float", "int", "bool", "complex", "opaque"]


@dataclass(frozen=True)
class DType:
    """One type of element. `code` is its number in the C kernels; 0 where they were not built."""

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


def _code(name: str) -> int:
    return _DTYPE_NAMES.index(name) if _DTYPE_NAMES else 0


def _dtype(name: str, kind: Kind) -> DType:
    numpy = np.dtype(name)
    return DType(name, _code(name), numpy.itemsize, kind, numpy)


FLOAT32 = _dtype("float32", "float")
FLOAT64 = _dtype("float64", "float")
FLOAT16 = _dtype("float16", "float")
BFLOAT16 = DType("bfloat16", _code("bfloat16"), 2, "float", None)
INT8 = _dtype("int8", "int")
INT16 = _dtype("int16", "int")
INT32 = _dtype("int32", "int")
INT64 = _dtype("int64", "int")
UINT8 = _dtype("uint8", "int")
UINT16 = _dtype("uint16", "int")
UINT32 = _dtype("uint32", "int")
UINT64 = _dtype("uint64", "int")
BOOL = _dtype("bool", "bool")
COMPLEX64 = _dtype("complex64", "complex")
COMPLEX128 = _dtype("complex128", "complex")

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        *(FLOAT32, FLOAT64, FLOAT16, BFLOAT16),
        *(INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64),
        *(BOOL, COMPLEX64, COMPLEX128),
    )
}


def opaque(name: str, itemsize: int) -> DType:
    """A type that can be moved but not reduced, such as float8_e4m3fn."""
    return DType(name, _code("opaque"), itemsize, "opaque", None)


@cache
def dtype_of(dtype: Any) -> DType:
    """Return the type of elements of a NumPy or PyTorch `dtype`; types that cannot be reduced,
    such as float8, can be moved. Raises: TypeError for Python objects."""
    if getattr(dtype, "hasobject", False):
        raise TypeError(f"{dtype} has Python objects as elements, which cannot be moved")
    name = str(dtype).removeprefix("torch.")
    return DTYPES.get(name) or opaque(name, dtype.itemsize)


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
