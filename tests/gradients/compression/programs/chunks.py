"""Each rank: coded sums in pieces over an imitated link, beside those in shared memory."""

import time

import torch
from mpi4py.MPI import COMM_WORLD
from torch import Size, Tensor

from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.link import Link
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.world import World
from phalanx.gradients.compression.backends import GroupBackend
from phalanx.gradients.compression.codec import BlockInt8
from phalanx.gradients.compression.codec_compressor import ShardChunks
from phalanx.gradients.compression.make import make_compressor

RANK, SIZE = COMM_WORLD.Get_rank(), COMM_WORLD.Get_size()
FAST = Link(bandwidth_bytes_per_s=1e9, latency_s=100e-6)
COUNT = SIZE * 600_011
NAMES = ("fp16", "bf16", "int8")


def sums(world: World, name: str) -> list[Tensor]:
    """Of two steps, which the ranks have counted as the compressor says."""
    traffic = world.group.traffic = TrafficCounter()
    compressor, found = make_compressor(name), []
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + RANK)
        values = torch.randn(COUNT, generator=generator)
        compressor.reduce(0, values, GroupBackend(world.group))
        found.append(values)
    assert traffic.sent_bytes == 2 * compressor.sent_bytes([Size([COUNT])], RANK, SIZE)
    world.group.traffic = None
    return found


def check_bits() -> None:
    memory, link = World.create(timeout_s=30), World.create(timeout_s=30, link=FAST)
    link.group.check = True
    assert ShardChunks(COUNT, SIZE, BlockInt8()).num_chunks > 1
    for name in NAMES:
        assert all(map(torch.equal, sums(link, name), sums(memory, name))), name
    assert link.group.last_calls().calls[-1].name == "coded sum"
    memory.close()
    link.close()


def check_faults() -> None:
    """Rank 0 does not come: the others say so, and the group is of no more use."""
    world = World.create(timeout_s=0.5, link=FAST)
    compressor, values = make_compressor("int8"), torch.ones(COUNT)
    compressor.reduce(0, values, GroupBackend(world.group))
    if RANK == 0:
        time.sleep(3.5)  # the others ask each other for two seconds
    else:
        for words in ("for rank 0", "can no longer be used"):
            try:
                compressor.reduce(0, values, GroupBackend(world.group))
            except (WaitTimeoutError, PeerFailedError) as error:
                assert words in str(error), error
            else:
                raise AssertionError("it came")
    COMM_WORLD.Barrier()


check_bits()
check_faults()
print(f"\nrank {RANK} of {SIZE} is done", flush=True)
COMM_WORLD.Barrier()
