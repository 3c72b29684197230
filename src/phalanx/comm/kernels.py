"""Selection of the kernels: in C where they were built, else array operations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType

from phalanx.comm import array_kernels
from phalanx.comm.buffer import Buffer
from phalanx.comm.compiled import import_kernels
from phalanx.comm.dtypes import ReduceOp

VARIABLE = "PHALANX_KERNELS"  # "arrays": do without the C kernels


def _are_wanted() -> bool:
    return os.environ.get(VARIABLE) != "arrays"


def compiled() -> ModuleType | None:
    """The module in C; None when it was not built, or is not wanted."""
    return import_kernels() if _are_wanted() else None


def obstacle_to_sharing(usable: Sequence[bool]) -> str | None:
    """Return why ranks that could share memory do not; None where nobody wants it otherwise.

    usable: whether each rank has kernels that serve so many ranks.
    """
    if any(usable):
        without = ", ".join(str(rank) for rank, has in enumerate(usable) if not has)
        return f"the C kernels are missing on rank {without} of the node"
    module = compiled()
    if module is None:
        missing = "the C kernels were not built, see phalanx doctor"
        return missing if len(usable) > 1 and _are_wanted() else None
    most = module.MAX_RANKS
    return f"{len(usable)} ranks exceed the limit of {most}" if len(usable) > most else None


def reduce_terms(
    terms: Sequence[Buffer], output: Buffer, op: ReduceOp, divisor: float = 1.0
) -> None:
    """output[i] = terms[0][i] op terms[1][i] op …, in this order, divided by `divisor`.

    terms, output: of one dtype and count; `output` may be one of the terms. Half types are summed
    in float32 and rounded once.
    """
    module = compiled()
    if module is None:
        array_kernels.reduce_terms(terms, output, op, divisor)
        return
    addresses = [term.address for term in terms]
    module.reduce_terms([output.address], addresses, output.count, output.dtype.code, op, divisor)


def widen(halves: Buffer, wide: Buffer) -> None:
    """wide, of float32, becomes the values of `halves`; apart in memory."""
    module = compiled()
    if module is None:
        array_kernels.widen(halves, wide)
    else:
        module.widen(wide.address, halves.address, halves.count, halves.dtype.code)


def narrow(wide: Buffer, halves: Buffer, divisor: float = 1.0) -> None:
    """halves becomes wide / divisor, rounded to the nearest even; apart in memory. `wide`, of
    float32, is changed."""
    module = compiled()
    if module is None:
        array_kernels.narrow(wide, halves, divisor)
    else:
        module.narrow(halves.address, wide.address, wide.count, halves.dtype.code, divisor)
