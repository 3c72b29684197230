"""Notes of the last collectives are right; then rank 2 hangs."""

import sys
import time
from pathlib import Path

import numpy as np

from phalanx.comm import clock
from phalanx.comm.abort import abort
from phalanx.comm.buffer import Buffer
from phalanx.comm.errors import PeerFailedError, WaitTimeoutError
from phalanx.comm.world import World


def check_notes(world: World) -> None:
    group = world.group
    before = group.sequence
    ones = Buffer.of(np.ones(8, np.float32))
    for _ in range(3):
        group.all_reduce(ones)
    group.reduce(ones, root=1)
    group.all_reduce(ones, algorithm="ring")
    group.barrier()
    group.all_reduce(ones)
    calls = [call for call in group.last_calls().calls if call.number > before]
    assert [call.number - before for call in calls] == list(range(1, 8)), calls
    names = ["all_reduce"] * 3 + ["reduce", "all_reduce", "barrier", "all_reduce"]
    assert [call.name for call in calls] == names, calls
    assert all(call.is_done for call in calls)
    assert "float32" in calls[3].call, calls[3]
    assert "root 1" in calls[3].call, calls[3]
    assert calls[4].way == "ring"
    times = [call.began_ns or 0 for call in calls]
    assert max(times) <= time.perf_counter_ns()
    part = group.subgroup([0, 1, 2], name="others", tag=3)
    assert part.last_calls().calls == []
    part.all_reduce(ones)
    assert [call.number for call in part.last_calls().calls] == [1]
    part.close()
    if world.rank == 0:
        print("notes are right", flush=True)


def check_clock(world: World) -> None:
    """Offset 0 on one machine; found by asking where machines are not the same."""
    assert clock.estimate_offset(world.group).offset_ns == 0
    known, clock.BOOT_ID = clock.BOOT_ID, Path("/nowhere")
    reading = clock.estimate_offset(world.group)
    clock.BOOT_ID = known
    assert reading.error_ns is not None
    assert abs(reading.offset_ns) <= reading.error_ns + 1, reading  # one machine after all
    assert (reading.error_ns == 0) == (world.rank == 0)


def main() -> None:
    world = World.create(timeout_s=30)
    check_notes(world)
    check_clock(world)
    world.barrier()
    world.group.timeout_s = 1.0
    one = Buffer.of(np.ones(1, np.float32))
    world.group.all_reduce(one)
    if world.rank == 2:
        time.sleep(20)
    try:
        world.group.all_reduce(one)
    except (WaitTimeoutError, PeerFailedError) as error:
        print(f"rank {world.rank}: {error}", file=sys.stderr, flush=True)
        time.sleep(0.5)  # for the other one to say it too
        abort(1)


main()
