"""Each rank: bring vectors in parts together, and compare with what NumPy says.

Words: what to do.
"""

import sys
import threading
import time

import numpy as np
from oracle import apply_update

from phalanx.comm.errors import MismatchError
from phalanx.comm.wait_reporter import current_wait
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.fused import FusedOptimizerStep
from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig

RULES = [
    OptimizerConfig(name="sgd", learning_rate=0.1, weight_decay=0.01),
    OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9),
    OptimizerConfig(name="adam", learning_rate=1e-3),
    OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.01),
]
LAYOUTS = 12


def layout_of(number: int) -> list[int]:
    """From nothing at all to some thousands of elements, in up to nine parts."""
    rng = np.random.default_rng(number)
    largest = [1, 20, 3000, 40_000][number % 4]
    return [int(size) for size in rng.integers(0, largest + 1, rng.integers(1, 10))]


def values(rank: int, sizes: list[int], dtype: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng([rank, seed])
    return [rng.standard_normal(size).astype(dtype) for size in sizes]


def in_rank_order(world: World, sizes: list[int], dtype: str, seed: int) -> list[np.ndarray]:
    totals = values(0, sizes, dtype, seed)
    for rank in range(1, world.size):
        for total, part in zip(totals, values(rank, sizes, dtype, seed), strict=True):
            total += part
    return totals


def carried_by(rank: int, seed: int) -> np.ndarray:
    return np.random.default_rng([7, rank, seed]).standard_normal(2)


def check_sums(world: World, sizes: list[int], dtype: str) -> None:
    buffer = joined(world, sizes, dtype)
    total = buffer.vectors[0]
    for seed in range(4):
        parts = values(world.rank, sizes, dtype, seed)
        buffer.carried[:] = carried_by(world.rank, seed)
        assert buffer.all_reduce([part.ctypes.data for part in parts])
        carried = sum((carried_by(rank, seed) for rank in range(world.size)), np.zeros(2))
        assert buffer.carried.tobytes() == carried.tobytes()
        expected = np.concatenate(in_rank_order(world, sizes, dtype, seed))
        assert total.tobytes() == expected.tobytes(), f"{sizes} of {dtype}"
        assert buffer.all_reduce([part.ctypes.data for part in parts], in_place=True)
        assert np.concatenate(parts).tobytes() == expected.tobytes(), f"{sizes} of {dtype}"
    check_sums_that_are_not_finite(world, buffer, sizes, dtype)
    world.barrier()
    del total
    buffer.close()


def check_sums_that_are_not_finite(
    world: World, buffer: FlatGradBuffer, sizes: list[int], dtype: str
) -> None:
    """Every rank knows of them, also where each term is finite."""
    where = spoiled_at(sizes, seed=5)
    if where is None:
        return
    part, element = where
    for bad in (np.nan, -np.inf, np.finfo(dtype).max):
        parts = values(world.rank, sizes, dtype, 4)
        if bad > 0 or world.rank == world.size - 1:
            parts[part][element] = bad
        is_finite = buffer.all_reduce([part.ctypes.data for part in parts])
        assert is_finite == (bad > 0 and world.size == 1), (sizes, dtype, bad)
        parts = values(world.rank, sizes, dtype, 4)
        assert buffer.all_reduce([part.ctypes.data for part in parts])


def spoiled_at(sizes: list[int], seed: int) -> tuple[int, int] | None:
    """A part and an element of it; the same on every rank."""
    rng = np.random.default_rng(seed)
    parts = [number for number, size in enumerate(sizes) if size]
    if not parts:
        return None
    part = int(rng.choice(parts))
    return part, int(rng.integers(sizes[part]))


def check_steps(world: World, rule: OptimizerConfig, sizes: list[int], dtype: str) -> None:
    fused = FusedOptimizerStep.join(world, rule, sizes, dtype)
    assert fused is not None
    begun = values(99, sizes, dtype, 0)
    if world.rank == 0:
        for shared, value in zip(fused.parameters, begun, strict=True):
            shared[:] = value
    world.barrier()
    kept = [[np.zeros_like(p) for _ in STATE_NAMES[rule.kind]] for p in begun]
    for step in range(1, 4):
        check_refused(world, fused, sizes, dtype, step)
        parts = values(world.rank, sizes, dtype, step)
        used_s = fused.step_at([part.ctypes.data for part in parts], 0.01 * step, step)
        assert used_s is not None
        coefficients = rule.coefficients(0.01 * step, step)
        sums = in_rank_order(world, sizes, dtype, step)
        for parameter, states, gradient in zip(begun, kept, sums, strict=True):
            apply_update(rule.kind, coefficients, parameter, states, gradient)
    for number, (parameter, states) in enumerate(zip(begun, kept, strict=True)):
        assert fused.parameters[number].tobytes() == parameter.tobytes(), (rule, sizes, dtype)
        for name, state in zip(STATE_NAMES[rule.kind], states, strict=True):
            assert fused.states[name][number].tobytes() == state.tobytes(), (rule, sizes, dtype)
    world.barrier()
    fused.close()


def check_refused(
    world: World, fused: FusedOptimizerStep, sizes: list[int], dtype: str, step: int
) -> None:
    """A step in which one rank's gradients are not finite changes nothing on any: whoever sums the
    bad value, of whatever rank."""
    bad_rank, bad = step % world.size, (np.nan, np.inf, -np.inf)[step % 3]
    where = spoiled_at(sizes, seed=step)
    if where is None:
        return
    parts = values(world.rank, sizes, dtype, step)
    if world.rank == bad_rank:
        parts[where[0]][where[1]] = bad
    vectors = [fused.parameters, *fused.states.values()]
    world.barrier()
    before = [array.tobytes() for vector in vectors for array in vector]
    addresses = [part.ctypes.data for part in parts]
    assert fused.step_at(addresses, 0.01 * step, step) is None, (sizes, dtype, step)
    assert before == [array.tobytes() for vector in vectors for array in vector]
    world.barrier()


def check_layouts(world: World) -> None:
    for number in range(LAYOUTS):
        dtype = ("float32", "float64")[number % 2]
        check_sums(world, layout_of(number), dtype)
        check_steps(world, RULES[number // 2 % 4], layout_of(number), dtype)


def joined(world: World, sizes: list[int], dtype: str = "float32") -> FlatGradBuffer:
    buffer = FlatGradBuffer.join(world, sizes, dtype, num_vectors=1)
    assert buffer is not None
    return buffer


def check_mismatch(world: World) -> None:
    sizes = [10, 20] if world.rank != 1 else [20, 10]
    parts = [np.ones(size, np.float32) for size in sizes]
    try:
        joined(world, sizes).all_reduce([part.ctypes.data for part in parts])
    except MismatchError as error:
        print(f"rank {world.rank} says: {error}", flush=True)
    world.barrier()


def check_missing(world: World) -> None:
    buffer = joined(world, [3, 4, 5])
    part = np.ones(5, np.float32)
    try:
        buffer.all_reduce([part.ctypes.data] * 2)
    except ValueError as error:
        print(error, flush=True)
    world.barrier()


def check_late(world: World) -> None:
    """Who waits in the set-up for a rank that computes is seen to wait, which once it was not: so
    the other one, in an endless loop, was not killed for want of patience."""
    thread, is_over, waits = threading.get_ident(), threading.Event(), set()

    def look() -> None:
        while not is_over.wait(0.01):
            waits.add(current_wait(world, thread))

    looking = threading.Thread(target=look)
    looking.start()
    if world.rank == 1:
        time.sleep(1.0)
        waits.discard(None)
        assert not waits, "it computes"
    joined(world, [3, 4, 5])
    is_over.set()
    looking.join()
    if world.rank == 0:
        assert waits - {None}, "it waits"
    world.barrier()


CHECKS = {
    "layouts": check_layouts,
    "mismatch": check_mismatch,
    "missing": check_missing,
    "late": check_late,
}


def main(*checks: str) -> None:
    world = World.create(timeout_s=30)
    for check in checks:
        CHECKS[check](world)
    world.close()
    print(f"rank {world.rank} is done", flush=True)


main(*sys.argv[1:])
