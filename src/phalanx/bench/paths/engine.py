"""Phalanx's collectives, called through `comm.Group`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.bench.config import PathName
from phalanx.bench.paths.path import Array, BenchParams, CaseBuffers, PreparedCase
from phalanx.bench.plan import Case
from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.comm.select import AlgorithmOption


class EnginePath:
    """Phalanx's collectives on private buffers."""

    def __init__(self, name: PathName, label: str, group: Group, params: BenchParams) -> None:
        self.name, self.label = name, label
        self._group, self._params = group, params

    def prepare(self, case: Case, private: CaseBuffers) -> PreparedCase:
        return PreparedCase(
            memory=private, call=engine_call(self._group, case, private, self._params)
        )

    def close(self) -> None: ...


class WindowPath:
    """Phalanx's collectives on buffers in shared memory, without copies."""

    def __init__(
        self,
        name: PathName,
        label: str,
        group: Group,
        params: BenchParams,
        allocate: Callable[[int, Any], Array],
    ) -> None:
        """allocate: (elements, dtype) → an array in shared memory."""
        self.name, self.label = name, label
        self._group, self._params, self._allocate = group, params, allocate

    def prepare(self, case: Case, private: CaseBuffers) -> PreparedCase:
        given = self._allocate(private.input.size, private.input.dtype)
        result = given
        if private.output is not private.input:
            result = self._allocate(private.output.size, private.output.dtype)
        memory = CaseBuffers(input=given, output=result)
        return PreparedCase(
            memory=memory, call=engine_call(self._group, case, memory, self._params)
        )

    def close(self) -> None: ...


class AlgorithmPath:
    """A fixed message-based algorithm, instead of the engine's choice."""

    def __init__(
        self,
        name: PathName,
        label: str,
        group: Group,
        params: BenchParams,
        algorithm: AlgorithmOption,
    ) -> None:
        self.name, self.label = name, label
        self._group, self._params, self._algorithm = group, params, algorithm

    def prepare(self, case: Case, private: CaseBuffers) -> PreparedCase:
        if case.collective != "all_reduce":
            raise NotImplementedError("the algorithm can be chosen for all-reduce only")
        group, op, algorithm = self._group, self._params.op, self._algorithm
        buffer = buffer_of(private.input, self._params)
        return PreparedCase(
            memory=private, call=lambda: group.all_reduce(buffer, op, algorithm=algorithm)
        )

    def close(self) -> None: ...


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
