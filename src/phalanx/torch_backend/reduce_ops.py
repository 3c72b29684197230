"""Mapping of PyTorch's reduce operations to the engine's."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.comm.dtypes import ReduceOp, check_operation, dtype_of


class Reduction(NamedTuple):
    """`op` over all ranks; `is_average`: divided by their number; `scales`: premultiplied by the
    operation's factor."""

    op: ReduceOp
    is_average: bool = False
    scales: bool = False


_REDUCTIONS = {
    "SUM": Reduction(ReduceOp.SUM),
    "AVG": Reduction(ReduceOp.SUM, is_average=True),
    "PREMUL_SUM": Reduction(ReduceOp.SUM, scales=True),
    **{op.name: Reduction(op) for op in ReduceOp if op is not ReduceOp.SUM},
}


@cache
def _op_name(number: int) -> str:
    """Return the name of the operation with hash `number`, in a third of the time of its `name`."""
    names = [name for name in _REDUCTIONS if name != "PREMUL_SUM"]
    numbers = {hash(dist.ReduceOp(getattr(dist.ReduceOp, name))): name for name in names}
    return numbers.get(number, "PREMUL_SUM")


@cache
def get_reduction(dtype: torch.dtype, number: int) -> Reduction:
    """Return the reduction of tensors of `dtype` for the operation with hash `number`.

    A sum of bool is "or", as with NCCL; Gloo sums bytes, of which every one but 0 is true.

    Raises: TypeError when elements of `dtype` have no such reduction.
    """
    name = _op_name(number)
    if dtype is torch.bool and name in ("AVG", "PREMUL_SUM"):
        raise TypeError(f"bool has no reduction {name}; use SUM, which is a logical or")
    reduction = _REDUCTIONS["BOR" if (dtype, name) == (torch.bool, "SUM") else name]
    check_operation(dtype_of(dtype), reduction.op)
    return reduction


def premul_factor(op: dist.ReduceOp) -> float | Tensor:
    """Return the factor of PREMUL_SUM; up to PyTorch 2.12 only the pickled state holds it."""
    state: Any = op.__getstate__()
    factor: float | Tensor = op.factor if hasattr(op, "factor") else state[1]
    return factor
