"""Many ranks on few cores: every way to sum gradients, a few times."""

from typing import get_args

import torch

from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import Method
from phalanx.gradients.make_reducer import AllReduce

SIZES = [20_000, 7, 0, 5_000]


def main() -> None:
    world = World.create(timeout_s=60)
    world.barrier()
    parameters = [torch.empty(size) for size in SIZES]
    truth = sum(range(1, world.size + 1))
    for method in get_args(Method):
        reducer = AllReduce(method=method, overlap="off").make(parameters, world)
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, world.rank + 1)
            reducer.flush()
            assert all((p.grad == truth).all() for p in parameters), f"{method} is wrong"
        world.barrier()
        reducer.close()
    world.close()
    print(f"\nrank {world.rank} of {world.size} is done", flush=True)


main()
