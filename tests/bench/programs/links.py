"""Each rank, a node of its own by an emulated link: links as `phalanx bench machine` measures."""

import itertools
import time
from typing import Any

from phalanx.bench.machine_rank import TURNS, Links
from phalanx.comm.link import Link
from phalanx.comm.world import World

BANDWIDTH, DELAY_S = 50e6, 5e-3
world = World.create(timeout_s=20, link=Link(bandwidth_bytes_per_s=BANDWIDTH))
shown: list[str] = []
make_communicator = world.group.make_communicator


class Late:
    """A communicator whose messages arrive later: those of MPI itself pass by the emulated link."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    def Send(self, *message: Any) -> None:  # noqa: N802  as mpi4py has it
        time.sleep(DELAY_S)
        self._communicator.Send(*message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._communicator, name)


world.group.make_communicator = lambda *which, **named: Late(make_communicator(*which, **named))  # type: ignore[method-assign]
found = Links(world.group, shown.append).measure()
assert len(shown) == (world.size - 1 if world.size % 2 == 0 else world.size)
assert sorted(link.nodes for link in found) == list(itertools.combinations(range(world.size), 2))
for link in found:
    assert len(link.bandwidths_bytes_per_s) == TURNS
    # A busy machine makes links slower, and none faster than the emulated one.
    rates = link.bandwidths_bytes_per_s
    assert all(0.02 * BANDWIDTH < rate < 1.1 * BANDWIDTH for rate in rates)
    assert all(seconds >= DELAY_S for seconds in link.latencies_s)
    assert link.send_cpu_s_per_mb > 0
assert world.group.compare(found) == [found] * world.size
world.close()
print(f"rank {world.rank} of {world.size} is done", flush=True)
