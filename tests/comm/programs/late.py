"""Each rank: one stays away from a collective; the others must name it.

Words: the collective; the rank that stays away.
"""

import os
import sys
import time

import torch

from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.world import World
from phalanx.gradients.make_reducer import AllReduce

world = World.create(timeout_s=1.0)
parameter = torch.ones(1000)
reducer = AllReduce(method="shared", overlap="off").make([parameter], world)
if world.rank == int(sys.argv[2]):
    time.sleep(6)
    os._exit(0)
try:
    if sys.argv[1] == "barrier":
        world.barrier("the barrier of the epoch")
    else:
        parameter.grad = torch.ones(1000)
        reducer.flush()
except (WaitTimeoutError, PeerFailedError) as error:
    print(f"rank {world.rank} says: {error}", flush=True)
time.sleep(4)  # keep the launcher from ending the others before they have spoken
os._exit(0)
