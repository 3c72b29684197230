"""Phalanx's collectives, called through `comm.Group`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from phalanx.bench.call_schedule import Case
from phalanx.bench.paths.path import Array, BenchParams, Call, CaseBuffers, PreparedCase
from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.group import Group
from phalanx.comm.world import World


def prepare_engine(
    group: Group,
    params: BenchParams,
    case: Case,
    private: CaseBuffers,
    *,
    allocate: Callable[[int, Any], Array] | None = None,
    algorithm: AlgorithmOption | None = None,
) -> PreparedCase:
    """Prepare a case on private buffers, or on buffers in shared memory without copies.

    allocate: (elements, dtype) → an array in shared memory; None: buffers are private.
    algorithm: a message-based one for all-reduce, instead of the engine's choice.
    """
    memory = private if allocate is None else CaseBuffers.make(case, params, allocate)
    if algorithm is None:
        return PreparedCase(memory=memory, call=engine_call(group, case, memory, params))
    if case.collective != "all_reduce":
        raise NotImplementedError("the algorithm can be chosen for all-reduce only")
    buffer = buffer_of(memory.input, params)
    call = partial(group.all_reduce, buffer, params.op, algorithm=algorithm)
    return PreparedCase(memory=memory, call=call)


def prepare_world(
    world: World, params: BenchParams, case: Case, private: CaseBuffers
) -> PreparedCase:
    """Prepare `World.all_reduce` of a tensor, which has a program call it as it is."""
    from phalanx.bench.paths.torch_groups import tensor_of

    if case.collective != "all_reduce" or params.op.name != "SUM":
        raise NotImplementedError("World has no reduction except the all-reduce that sums")
    tensor = tensor_of(private.input, params)
    return PreparedCase(memory=private, call=lambda: world.all_reduce(tensor))


def engine_call(group: Group, case: Case, memory: CaseBuffers, params: BenchParams) -> Call:
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
