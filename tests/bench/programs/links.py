"""Each rank, a node of its own by an emulated link: links as `phalanx bench machine` measures."""

import itertools

import pytest

from phalanx.bench.machine_rank import TURNS, Links
from phalanx.comm.link import Link
from phalanx.comm.world import World

BANDWIDTH = 50e6
world = World.create(timeout_s=20, link=Link(bandwidth_bytes_per_s=BANDWIDTH))
shown: list[str] = []
found = Links(world.group, shown.append).measure()
assert len(shown) == (world.size - 1 if world.size % 2 == 0 else world.size)
assert sorted(link.nodes for link in found) == list(itertools.combinations(range(world.size), 2))
for link in found:
    assert len(link.bandwidths_bytes_per_s) == TURNS
    assert link.bandwidths_bytes_per_s == pytest.approx([BANDWIDTH] * TURNS, rel=0.25)
    assert all(0 < seconds < 0.05 for seconds in link.latencies_s)
    assert 0 < link.send_cpu_s_per_mb < 0.1
assert world.group.compare(found) == [found] * world.size
world.close()
print(f"rank {world.rank} of {world.size} is done", flush=True)
