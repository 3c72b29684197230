"""Rank 1 raises while the others wait for it, with a timeout that no test waits for."""

from phalanx.comm.world import World

world = World.create(timeout_s=300)
if world.rank == 1:
    raise ValueError("rank 1 has had enough")
world.barrier()
