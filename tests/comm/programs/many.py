"""Many ranks on few cores: every way to sum gradients, a few times."""

from typing import get_args

import numpy as np

from phalanx.comm.world import World
from phalanx.gradients.reducer import Method, make_reducer

SIZES = [20_000, 7, 0, 5_000]


def main() -> None:
    world = World.create(timeout_s=60)
    world.barrier()
    parts = [np.full(size, world.rank + 1, np.float32) for size in SIZES]
    truth = sum(range(1, world.size + 1))
    for method in get_args(Method):
        reducer = make_reducer(world, SIZES, "float32", method)
        for _ in range(3):
            reducer.all_reduce(parts)
            assert (reducer.total == truth).all(), f"{method} is wrong"
        world.barrier()
        reducer.close()
    world.close()
    print(f"\nrank {world.rank} of {world.size} is done", flush=True)


main()
