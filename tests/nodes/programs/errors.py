"""Errors of the engine on four ranks of two nodes; every rank prints those that it got."""

import time
from collections.abc import Callable

import numpy as np

import phalanx
from phalanx.comm.buffer import Buffer
from phalanx.comm.errors import MismatchError, PeerFailedError, WaitTimeoutError
from phalanx.comm.group import Group

world = phalanx.World.create(timeout_s=60)


def caught(call: Callable[[], object]) -> str:
    try:
        call()
    except (MismatchError, PeerFailedError, WaitTimeoutError) as error:
        return str(error).partition(" (its last")[0]
    return "nothing"


def group_of(name: str, members: range) -> Group:
    """Return a group, which has come about on all of its members."""
    group = world.group.subgroup(members, name=name)
    group.barrier()
    return group


def late_rank(group: Group, late: int) -> str:
    """Time out in a barrier for which one rank comes after all others have given up."""
    if group.rank == late:
        time.sleep(6)
        return "late"
    return caught(lambda: group.barrier(timeout_s=1))


def say(part: str, text: str) -> None:
    rows = [world.share((world.rank, text), root=root) for root in range(world.size)]
    if world.rank == 0:
        for rank, said in rows:
            print(f"{part}: {rank}: {said}", flush=True)


say("late", late_rank(group_of("all", range(4)), 3))

failing = group_of("failing", range(4))
world.barrier()  # all have left that of the group
if failing.rank == 2:
    failing.fail("no such luck")
say("failed", "itself" if failing.rank == 2 else caught(failing.barrier))

on_node = "elsewhere"
if world.rank >= 2:  # the ranks of one node, which share memory
    on_node = late_rank(group_of("node", range(2, 4)), 1)
say("node", on_node)

checked = world.duplicate(check=True)
values = np.zeros(8 + (checked.rank == 3))
say("mismatch", caught(lambda: checked.group.all_reduce(Buffer.of(values))))

pair = group_of("pair", range(0, 4, 2)) if world.rank % 2 == 0 else None
text = "elsewhere"
if pair is not None:
    vector = Buffer.of(np.zeros(5 if pair.rank == 0 else 4))
    if pair.rank == 0:
        pair.send(vector, dest=1).wait()
    else:
        text = caught(pair.receive(vector, source=0).wait)
say("message", text)
