"""Phalanx's collectives, called through `comm.Group`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.bench.config import PathName
from phalanx.bench.paths.path import Array, BenchParams, BenchPath, CaseBuffers, PreparedCase
from phalanx.bench.plan import Case
from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.group import Group


class EnginePath(BenchPath):
    """Phalanx's collectives on private buffers, or on buffers in shared memory without copies."""

    def __init__(
        self,
        name: PathName,
        label: str,
        group: Group,
        params: BenchParams,
        *,
        allocate: Callable[[int, Any], Array] | None = None,
        algorithm: AlgorithmOption | None = None,
    ) -> None:
        """allocate: (elements, dtype) → an array in shared memory; None: buffers are private.
        algorithm: a message-based one for all-reduce, instead of the engine's choice."""
        self.name, self.label = name, label
        self._group, self._params = group, params
        self._allocate, self._algorithm = allocate, algorithm

    def prepare(self, case: Case, private: CaseBuffers) -> PreparedCase:
        memory, group, algorithm = private, self._group, self._algorithm
        if algorithm is not None:
            if case.collective != "all_reduce":
                raise NotImplementedError("the algorithm can be chosen for all-reduce only")
            buffer, op = buffer_of(private.input, self._params), self._params.op
            return PreparedCase(
                memory=memory, call=lambda: group.all_reduce(buffer, op, algorithm=algorithm)
            )
        if self._allocate is not None:
            given = result = self._allocate(private.input.size, private.input.dtype)
            if private.output is not private.input:
                result = self._allocate(private.output.size, private.output.dtype)
            memory = CaseBuffers(input=given, output=result)
        return PreparedCase(memory=memory, call=engine_call(group, case, memory, self._params))


def engine_call(
    group: Group, case: Case, memory: CaseBuffers, params: BenchParams
) -> Callable[[], object]:
    """Return the collective of `case` on `memory` as a call without arguments."""
    given, result = buffer_of(memory.input, params), buffer_of(memory.output, params)
    op = params.op
    match case.collective:
        case "all_reduce":
            return lambda: group.all_reduce(given, op)
        case "broadcast":
            return lambda: group.broadcast(given, root=0)
        case "all_gather":
            outputs = parts_of(result, group.size)
            return lambda: group.all_gather(outputs, given)
        case "reduce_scatter":
            parts = parts_of(given, group.size)
            return lambda: group.reduce_scatter(result, parts, op)
        case "all_to_all":
            outputs, parts = parts_of(result, group.size), parts_of(given, group.size)
            return lambda: group.all_to_all(outputs, parts)
        case "barrier":
            return group.barrier


def buffer_of(array: Array, params: BenchParams) -> Buffer:
    """Return a buffer of the measured dtype, also of one that NumPy lacks (bfloat16)."""
    return Buffer(array.ctypes.data, array.size, params.dtype, array)


def parts_of(buffer: Buffer, parts: int) -> list[Buffer]:
    """Return equal chunks, one per rank."""
    size = buffer.count // parts
    return [buffer.part(number * size, (number + 1) * size) for number in range(parts)]
