"""The last rank is late by two seconds in every scheme; what the waiting of the others costs."""

import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[3] / "examples" / "scratch"))
from phalanx.comm.world import World
from train import NUM_PIXELS, make_scheme, parse

LATE_S = 2.0
BATCH = 12

world = World.create(timeout_s=60)
for name in ("library", "ring", "server", "tensor"):
    scheme = make_scheme(parse(["--scheme", name]), world.group)
    mine = scheme.share(BATCH)
    inputs, labels = np.ones((len(mine), NUM_PIXELS), np.float32), np.zeros(len(mine), np.int64)
    world.barrier()
    if world.rank == world.size - 1:
        time.sleep(LATE_S)
    began, began_cpu = time.perf_counter(), time.process_time()
    scheme.forward(inputs, labels)
    scheme.backward(BATCH)
    scheme.combine()
    scheme.update()
    scheme.distribute()
    took, burnt = time.perf_counter() - began, time.process_time() - began_cpu
    if world.rank < world.size - 1:
        assert took > 0.9 * LATE_S, f"{name}: rank {world.rank} did not wait"
        assert burnt < 0.5 * took, f"{name}: rank {world.rank} burnt {burnt:.2f} s of {took:.2f} s"
    world.barrier()
if world.rank == 0:
    print("waited quietly")
world.close()
