"""The interface of a measured path: one implementation of the collectives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from phalanx.bench.config import PathName
from phalanx.bench.pattern import input_count, is_in_place, output_count, storage_type
from phalanx.bench.plan import Case
from phalanx.comm.dtypes import DType, ReduceOp

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class BenchParams:
    """Rank, world size, dtype and reduce operation of a measurement."""

    rank: int
    ranks: int
    dtype: DType
    op: ReduceOp


@dataclass(frozen=True, kw_only=True)
class CaseBuffers:
    """The buffers of one case; `output` is `input` where the collective works in place."""

    input: Array
    output: Array

    @classmethod
    def private(cls, case: Case, params: BenchParams) -> CaseBuffers:
        """Allocate buffers in this process's private memory."""
        element = storage_type(params.dtype)
        given = np.zeros(input_count(case, params.ranks), element)
        if is_in_place(case):
            return cls(input=given, output=given)
        return cls(input=given, output=np.zeros(output_count(case, params.ranks), element))


@dataclass(frozen=True, kw_only=True)
class PreparedCase:
    """One case, ready to be called again and again."""

    memory: CaseBuffers
    call: Callable[[], object]
    """The timed call."""
    copy_in: Callable[[], object] | None = None
    """Copies the input from `memory` to the call's buffers, if those differ."""
    copy_out: Callable[[], object] | None = None
    """Copies the output back to `memory`."""


class BenchPath(Protocol):
    """An implementation of the collectives. Creation, calls and closing are collective."""

    name: PathName
    label: str

    def prepare(self, case: Case, private: CaseBuffers) -> PreparedCase:
        """Prepare a case. private: buffers for paths that need no special memory.

        Raises: NotImplementedError with the reason when the path does not support the collective,
        on every rank alike.
        """

    def close(self) -> None:
        """Release what the path holds; nothing by default."""
        return


class UnavailablePath(BenchPath):
    """A path that cannot run here, with the reason."""

    def __init__(self, name: PathName, label: str, reason: str) -> None:
        self.name, self.label, self._reason = name, label, reason

    def prepare(self, case: Case, private: CaseBuffers) -> PreparedCase:
        raise NotImplementedError(self._reason)
