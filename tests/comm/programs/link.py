"""Each rank: messages and collectives over an emulated link, none earlier than it says.

Lower bounds alone: how late a message is depends on who else uses the machine.
"""

import time
from collections.abc import Callable

import numpy as np
import pytest
from mpi4py.MPI import COMM_WORLD

from phalanx.comm.buffer import Buffer
from phalanx.comm.collectives.expected_traffic import expected_traffic
from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.link import Link
from phalanx.comm.traffic import TrafficCounter
from phalanx.comm.world import World

LATENCY_S, BANDWIDTH = 20e-3, 10e6
LINK = Link(bandwidth_bytes_per_s=BANDWIDTH, latency_s=LATENCY_S)
world = World.create(timeout_s=20, link=LINK)
group, rank, size = world.group, world.rank, world.size
after, before = (rank + 1) % size, (rank - 1) % size


def taken_s(call: Callable[[], object]) -> float:
    """Seconds from the moment when all ranks have come, at which this one begins."""
    group.barrier()
    began = time.monotonic()
    call()
    return time.monotonic() - began


def exchange(count: int, pieces: int = 1) -> None:
    """Send to the next rank and receive from the one before, in order."""
    sent = np.arange(count * pieces, dtype=np.float64) + 1000 * rank
    got = np.zeros_like(sent)
    requests = []
    for number in range(pieces):
        where = slice(number * count, (number + 1) * count)
        requests.append(group.receive(Buffer.of(got[where]), source=before))
        requests.append(group.send(Buffer.of(sent[where]), dest=after))
    for request in requests:
        request.wait()
    assert (got == np.arange(count * pieces) + 1000 * before).all()


def main() -> None:
    assert not world.on_one_node and world.local_size == 1 and world.local_rank == 0
    assert group.nodes == tuple(range(size)) and group.shm is None

    # The barrier itself is a network's: its rounds take the latency each.
    assert taken_s(group.barrier) >= LATENCY_S
    assert taken_s(lambda: exchange(0)) >= LATENCY_S
    assert taken_s(lambda: exchange(50_000)) >= LATENCY_S + 400_000 / BANDWIDTH
    # One after the other, but on their way at the same time.
    assert taken_s(lambda: exchange(5_000, pieces=10)) >= LATENCY_S + 400_000 / BANDWIDTH

    for algorithm in ("auto", "direct", "ring", "halving", "tree", "naive", "lanes", "library"):
        values = np.arange(60_000, dtype=np.float64) + rank
        reduce = lambda v=values, a=algorithm: group.all_reduce(Buffer.of(v), algorithm=a)  # noqa: E731
        # Two nodes send each other all they have, in one round; and wait for as many bytes.
        rounds = 1 if size == 2 and algorithm in ("auto", "direct", "lanes") else 2
        floor_s = rounds * LATENCY_S + values.nbytes / BANDWIDTH * (size - 1) / size
        assert taken_s(reduce) >= floor_s, algorithm
        assert (values == size * np.arange(60_000) + size * (size - 1) / 2).all(), algorithm

    # Long ones go in chunks: the second round's latency passes while the first is under way.
    count = 300_000 * size  # shares of 1.2 MB
    values = np.arange(count, dtype=np.float32) % 1000 + rank
    traffic = group.traffic = TrafficCounter()
    floor_s = LATENCY_S + 2 * values.nbytes / BANDWIDTH * (size - 1) / size
    assert taken_s(lambda: group.all_reduce(Buffer.of(values))) >= floor_s
    assert (values == size * (np.arange(count) % 1000) + size * (size - 1) / 2).all()
    expected = expected_traffic("direct", count, 4, rank, size, nodes=range(size))
    assert expected.messages >= 4 * (size - 1)
    assert (traffic.messages, traffic.sent_bytes) == (expected.messages, expected.sent_bytes)
    group.traffic = None

    # What is computed meanwhile takes nothing from the link: the thread that waits is another one.
    request = group.send(Buffer.of(np.zeros(10)), dest=after)
    got = np.ones(10)
    time.sleep(2 * LATENCY_S)
    group.receive(Buffer.of(got), source=before).wait()
    request.wait()
    assert not got.any()

    # Groups of the world go by the same way out, and count what they send.
    traffic = group.traffic = TrafficCounter()
    pair = group.subgroup(range(size), name="again")
    pair.all_reduce(Buffer.of(np.ones(6, np.float32)))
    assert traffic.sent_bytes == (size - 1) * 24
    pair.close()
    group.traffic = None
    tell_deaths()


def tell_deaths() -> None:
    """A rank that does not come is named, and one that says that it failed ends waits."""
    late = group.subgroup(range(size), name="late")
    late.timeout_s = 0.3
    if rank:
        try:
            late.all_reduce(Buffer.of(np.ones(3)))
        except (WaitTimeoutError, PeerFailedError) as error:
            assert "rank 0" in str(error), error
    else:
        time.sleep(0.8)
    if rank == 0:
        group.barrier()
        group.fail("it broke")
        time.sleep(0.5)
    else:
        with pytest.raises(PeerFailedError, match="rank 0 failed: it broke"):
            group.barrier()  # which rank 0 may leave first
            group.all_reduce(Buffer.of(np.ones(3)))


main()
print(f"\nrank {rank} of {size} is done", flush=True)
COMM_WORLD.Barrier()  # or the launcher would end those who have not spoken yet
