"""Each rank: every operation of comm/ against its definition, sizes even and uneven."""

from typing import get_args

import numpy as np
import pytest
import torch

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.expected_traffic import P2PAlgorithm
from phalanx.comm.collectives.library import BLOCKING_BYTES
from phalanx.comm.world import World
from phalanx.gradients.make_reducer import AllReduce

SIZES = [1, 2, 7, 1000, 100_003]
LAYOUTS = [[1], [2, 0, 1], [7, 1000], [1, 199_999, 40_000, 3]]  # elements of the parts


def values(rank: int, size: int, dtype: str) -> np.ndarray:
    return np.random.default_rng([rank, size]).standard_normal(size).astype(dtype)


def parts_of(rank: int, layout: list[int], dtype: str) -> list[np.ndarray]:
    return np.split(values(rank, sum(layout), dtype), np.cumsum(layout)[:-1])


def in_rank_order(world: World, size: int, dtype: str) -> np.ndarray:
    total = values(0, size, dtype)
    for rank in range(1, world.size):
        total = total + values(rank, size, dtype)
    return total


def check_all_reduce(world: World, method: str, layout: list[int], dtype: str) -> None:
    parts = parts_of(world.rank, layout, dtype)
    parameters = [torch.from_numpy(np.zeros_like(part)) for part in parts]
    reducer = AllReduce(method=method, overlap="off").make(parameters, world)
    expected_name = method if method != "auto" else "shared"
    assert reducer.name == expected_name
    expected = in_rank_order(world, sum(layout), dtype)
    first = None
    for _ in range(3):
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = torch.from_numpy(part)
        reducer.flush()
        total = np.concatenate([parameter.grad.numpy() for parameter in parameters])
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)
        if reducer.name == "shared":
            assert total.tobytes() == expected.tobytes(), "summed in another order"
        first = first or total.tobytes()
        assert total.tobytes() == first, "other bits in another run"
    for part, given in zip(parts, parts_of(world.rank, layout, dtype), strict=True):
        assert np.array_equal(part, given), "what was given was changed"
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
    much = np.full(BLOCKING_BYTES, world.rank + 1.0)
    world.group.all_reduce(Buffer.of(much), algorithm="library")  # by its blocking call
    assert (much == sum(range(world.size + 1))).all()
    array, tensor = np.full(5, world.rank + 1), torch.full((2, 3), world.rank + 1.0)
    world.all_reduce(array)
    world.all_reduce(tensor)
    assert (array == sum(range(world.size + 1))).all()
    assert bool((tensor == sum(range(world.size + 1))).all())
    lazy = torch.ones(2, dtype=torch.cfloat).conj()
    for unfit in (np.ones((4, 4))[:, 1], torch.ones(4, 4).t(), lazy):
        with pytest.raises(ValueError, match="contiguous"):
            world.all_reduce(unfit)


def main() -> None:
    world = World.create(timeout_s=30)
    for method in ("auto", *get_args(P2PAlgorithm), "library"):
        for dtype in ("float32", "float64"):
            for layout in LAYOUTS:
                check_all_reduce(world, method, layout, dtype)
    check_the_rest(world)
    world.close()
    print(f"rank {world.rank} of {world.size} is done", flush=True)


main()
