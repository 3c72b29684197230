"""Each rank, a node of its own by an emulated link: links as `phalanx bench machine` measures."""

import itertools
import time
from typing import Any

import pytest

from phalanx.bench.machine_rank import BOTH_TURNS, TURNS, Links
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
    assert len(link.both_ways_bytes_per_s) == BOTH_TURNS
    assert link.both_ways_bytes_per_s == pytest.approx([BANDWIDTH] * BOTH_TURNS, rel=0.25)
    assert link.bandwidths_bytes_per_s == pytest.approx([BANDWIDTH] * TURNS, rel=0.25)
    assert all(DELAY_S <= seconds < 10 * DELAY_S for seconds in link.latencies_s)
    assert 0 < link.send_cpu_s_per_mb < 0.1
assert world.group.compare(found) == [found] * world.size
world.close()
print(f"rank {world.rank} of {world.size} is done", flush=True)
