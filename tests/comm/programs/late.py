"""Each rank: one stays away from a collective; the others must name it.

Words: the collective; the rank that stays away.
"""

import os
import sys
import time

import numpy as np

from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.world import World
from phalanx.gradients.reducer import make_reducer

world = World.create(timeout_s=1.0)
reducer = make_reducer(world, [1000], np.float32, "shared")
if world.rank == int(sys.argv[2]):
    time.sleep(6)
    os._exit(0)
try:
    if sys.argv[1] == "barrier":
        world.barrier("the barrier of the epoch")
    else:
        reducer.all_reduce([np.ones(1000, np.float32)])
except (WaitTimeoutError, PeerFailedError) as error:
    print(f"rank {world.rank} says: {error}", flush=True)
time.sleep(4)  # keep the launcher from ending the others before they have spoken
os._exit(0)
