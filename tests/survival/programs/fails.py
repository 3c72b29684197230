"""Rank 1 dies or fails, as the word says; the others wait, and do not recover."""

import os
import signal
import sys
import time

from phalanx.comm.world import World

world = World.create(timeout_s=30)
world.barrier()
if world.rank == 1 and sys.argv[1] == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if world.rank == 1:
    raise ValueError("rank 1 has had enough")
if sys.argv[1] == "fails":
    time.sleep(60)
world.barrier()
