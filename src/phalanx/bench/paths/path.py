"""A measured path: one implementation of the collectives, as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phalanx.bench.call_schedule import Case
from phalanx.bench.config import PathName
from phalanx.bench.pattern import input_count, is_in_place, output_count, storage_type
from phalanx.comm.dtypes import DType, ReduceOp
from phalanx.comm.world import World

Array = NDArray[Any]
Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class BenchParams:
    """Rank, world size, dtype, reduce operation and device of a measurement."""

    rank: int
    ranks: int
    dtype: DType
    op: ReduceOp
    device: str = "cpu"
    """Device of the tensors on backend mpi, as the user names it."""


@dataclass(frozen=True, kw_only=True)
class CaseBuffers:
    """The buffers of one case; `output` is `input` where the collective works in place."""

    input: Array
    output: Array

    @classmethod
    def make(
        cls, case: Case, params: BenchParams, allocate: Callable[[int, Any], Array] = np.zeros
    ) -> CaseBuffers:
        """Allocate buffers: (elements, dtype) → array; in private memory by default."""
        element = storage_type(params.dtype)
        given = allocate(input_count(case, params.ranks), element)
        if is_in_place(case):
            return cls(input=given, output=given)
        return cls(input=given, output=allocate(output_count(case, params.ranks), element))


@dataclass(frozen=True, kw_only=True)
class PreparedCase:
    """One case, ready to be called again and again."""

    memory: CaseBuffers
    call: Call
    """The timed call."""
    copy_in: Call | None = None
    """Copies the input from `memory` to the call's buffers, if those differ."""
    copy_out: Call | None = None
    """Copies the output back to `memory`."""


@dataclass(frozen=True, kw_only=True)
class BenchPath:
    """An implementation of the collectives. Preparation and calls are collective."""

    name: PathName
    label: str
    prepare: Callable[[Case, CaseBuffers], PreparedCase]
    """Preparation of a case, on private buffers unless the path needs special memory.

    Raises NotImplementedError with the reason when the path does not support the collective, on
    every rank alike."""


def first_reason(world: World, reason: str) -> str:
    """Return the first of all ranks' reasons why not, empty if there is none. Collective."""
    reasons = [world.share(reason, root=rank) for rank in range(world.size)]
    return next(filter(None, reasons), "")


def unavailable(name: PathName, label: str, reason: str) -> BenchPath:
    """Return a path that cannot run here, with the reason."""

    def refuse(case: Case, private: CaseBuffers) -> PreparedCase:
        raise NotImplementedError(reason)

    return BenchPath(name=name, label=label, prepare=refuse)
