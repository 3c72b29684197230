"""Each rank: every operation of comm/ against its definition, sizes even and uneven."""

import numpy as np

from phalanx.comm.reducer import make_reducer
from phalanx.comm.world import World

SIZES = [1, 2, 7, 1000, 100_003]


def values(rank: int, size: int, dtype: str) -> np.ndarray:
    return np.random.default_rng([rank, size]).standard_normal(size).astype(dtype)


def in_rank_order(world: World, size: int, dtype: str) -> np.ndarray:
    total = values(0, size, dtype)
    for rank in range(1, world.size):
        total = total + values(rank, size, dtype)
    return total


def check_all_reduce(world: World, method: str, size: int, dtype: str) -> None:
    reducer = make_reducer(world, size, dtype, method)
    assert reducer.name == (method if method != "auto" or world.size > 1 else "library")
    expected = in_rank_order(world, size, dtype)
    first = None
    for _ in range(3):
        reducer.buffer[:] = values(world.rank, size, dtype)
        half = size // 2
        reducer.all_reduce(0, half)
        assert np.array_equal(reducer.buffer[half:], values(world.rank, size, dtype)[half:])
        reducer.all_reduce(half, size)
        np.testing.assert_allclose(reducer.buffer, expected, rtol=1e-5, atol=1e-6)
        if method == "shared":
            assert reducer.buffer.tobytes() == expected.tobytes(), "summed in another order"
        first = first if first is not None else reducer.buffer.tobytes()
        assert reducer.buffer.tobytes() == first, "other bits in another run"
    world.barrier()
    reducer.close()


def check_the_rest(world: World) -> None:
    for size in SIZES:
        buffer = values(world.rank, size, "float32")
        world.broadcast(buffer, root=world.size - 1)
        assert np.array_equal(buffer, values(world.size - 1, size, "float32"))
    rows = world.gather(np.array([world.rank, 0.5]))
    if world.rank == 0:
        assert rows is not None
        assert rows.tolist() == [[rank, 0.5] for rank in range(world.size)]
    else:
        assert rows is None
    assert world.share({"from": world.rank}) == {"from": 0}


def main() -> None:
    world = World.create(timeout_s=30)
    for method in ("shared", "library"):
        for dtype in ("float32", "float64"):
            for size in SIZES:
                check_all_reduce(world, method, size, dtype)
    check_the_rest(world)
    world.close()
    print(f"rank {world.rank} of {world.size} is done", flush=True)


main()
