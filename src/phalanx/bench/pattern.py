"""Input patterns of the buffers, and the outputs to expect of a correct collective.

Small integers give exact results for every type, operation and order of summation. They differ by
rank, call and position, with a prime period, so that chunks that were swapped, left out or left
over from the last call are detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.bench.call_schedule import Case
from phalanx.comm.dtypes import DType, ReduceOp

PERIOD = 16_381
VARIANTS = 2  # kinds of values, alternating between calls

Array = NDArray[Any]

_COMBINE = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


@dataclass(frozen=True)
class ExpectedSegment:
    """Elements [start, stop) of the output: `ranks`' inputs from `source` on, reduced."""

    start: int
    stop: int
    source: int
    ranks: tuple[int, ...]


def storage_type(dtype: DType) -> np.dtype[Any]:
    """Return NumPy's type for the buffers; bfloat16 is stored in 16-bit integers."""
    return dtype.numpy if dtype.numpy is not None else np.dtype(np.uint16)


def input_count(case: Case, ranks: int) -> int:
    return case.count // ranks if case.collective == "all_gather" else case.count


def output_count(case: Case, ranks: int) -> int:
    return case.count // ranks if case.collective == "reduce_scatter" else case.count


def is_in_place(case: Case) -> bool:
    """Return whether the collective overwrites its input with the result."""
    return case.collective in ("all_reduce", "broadcast", "barrier")


def expectations(case: Case, rank: int, ranks: int) -> list[ExpectedSegment]:
    """Return the expected segments of the output of `rank`."""
    everyone = tuple(range(ranks))
    part = case.count // ranks
    if case.collective == "all_reduce":
        return [ExpectedSegment(0, case.count, 0, everyone)]
    if case.collective == "reduce_scatter":
        return [ExpectedSegment(0, part, rank * part, everyone)]
    if case.collective == "broadcast":
        return [ExpectedSegment(0, case.count, 0, (0,))]
    if case.collective == "barrier":
        return []
    own = rank * part if case.collective == "all_to_all" else 0  # an all_gather sends all of it
    return [ExpectedSegment(peer * part, (peer + 1) * part, own, (peer,)) for peer in everyone]


class Pattern:
    """The values of one case on one rank, computed once and written before each call."""

    def __init__(self, case: Case, *, rank: int, ranks: int, dtype: DType, op: ReduceOp) -> None:
        self._inputs = [_encode(_values(rank, k, op), dtype) for k in range(VARIANTS)]
        self._expected = expectations(case, rank, ranks)
        self._outputs = [
            [_encode(_reduced(expected.ranks, k, op), dtype) for expected in self._expected]
            for k in range(VARIANTS)
        ]

    def fill(self, memory: Array, call: int) -> None:
        """Write the input of call number `call`."""
        _write(memory, self._inputs[call % VARIANTS])

    def count_wrong(self, memory: Array, call: int) -> int:
        """Count the wrong elements in the output of call number `call`."""
        outputs = self._outputs[call % VARIANTS]
        return sum(
            count_wrong(memory[expected.start : expected.stop], output, expected.source)
            for expected, output in zip(self._expected, outputs, strict=True)
        )


def count_wrong(found: Array, tile: Array, source: int) -> int:
    """Count the elements that differ from `tile`, repeated and starting at `source`."""
    wanted = np.concatenate([tile, tile])[source % PERIOD :][:PERIOD]
    whole = found.size // PERIOD * PERIOD
    rows = found[:whole].reshape(-1, PERIOD)
    rest = found[whole:]
    wrong = sum(int(np.count_nonzero(row != wanted)) for row in rows)
    return wrong + int(np.count_nonzero(rest != wanted[: rest.size]))


def _write(memory: Array, tile: Array) -> None:
    whole = memory.size // PERIOD * PERIOD
    memory[:whole].reshape(-1, PERIOD)[:] = tile
    memory[whole:] = tile[: memory.size - whole]


def _values(rank: int, variant: int, op: ReduceOp) -> NDArray[np.int64]:
    places = np.arange(PERIOD)
    # A product of many ranks must stay exact: ones and twos. Sums have room for more.
    kinds = 2 if op == ReduceOp.PRODUCT else 7
    return (places + places // 13 + 3 * rank + 5 * variant) % kinds + 1


def _reduced(ranks: Sequence[int], variant: int, op: ReduceOp) -> NDArray[np.int64]:
    total = _values(ranks[0], variant, op)
    for rank in ranks[1:]:
        total = _COMBINE[op](total, _values(rank, variant, op))
    return total


def _encode(values: NDArray[np.int64], dtype: DType) -> Array:
    if dtype.numpy is not None:
        return values.astype(dtype.numpy)
    bits = values.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16)  # bfloat16 is the upper half, exact for these
