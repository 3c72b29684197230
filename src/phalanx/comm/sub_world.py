"""Worlds of some of the ranks of another one, while the rest wait for word of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.comm.communicators import SET_UP_TAG, Heritage, OpenCommunicators
from phalanx.comm.faults import raise_if_left, unwatch
from phalanx.comm.in_flight import keep_alive_forever
from phalanx.comm.mpi import mpi
from phalanx.comm.world import World

WORD_TAG = SET_UP_TAG - 1
NAP_S = 0.01
"""Seconds between two polls of a rank that waits for word, each of some 10 µs."""


def sub_world(world: World, ranks: Sequence[int]) -> World:
    """Return a world of some ranks of `world`, in their order; called by these only. Only where MPI
    is fault tolerant: after a loss `world` is recovered, and this one abandoned with it.

    Raises: errors for which `is_recoverable` holds where a rank dies meanwhile.
    """
    communicator = world.group.make_communicator(ranks, name="of those that compute")
    made = heir_of(world, communicator, [world.original_ranks[rank] for rank in ranks])
    world.dependents.add(made)
    return made


def heir_of(world: World, communicator: Any, original_ranks: Sequence[int]) -> World:
    """Return a world of the ranks of `communicator`, which it takes over. Collective over these.

    original_ranks: theirs, in the world that they started in.
    Raises: as `sub_world`; the communicator is then revoked.
    """
    communicators = OpenCommunicators()
    communicators.track(communicator)
    heritage = Heritage(
        original_ranks=tuple(original_ranks),
        rendezvous=world.rendezvous,
        communicators=communicators,
        on_one_node=world.on_one_node,
    )
    check = world.group.check
    try:
        return World(
            communicator, timeout_s=world.timeout_s, link=world.link, check=check, heritage=heritage
        )
    except Exception:
        communicators.revoke()
        raise


def retire(made: World) -> None:
    """Use a world made by `sub_world` no more, once all its ranks have come to this. Its
    communicators stay. Not collective."""
    unwatch(made.communicator)
    made.close_abandoned()


def send_word(world: World, word: bytes, dest: int) -> None:
    """Send a short message to a rank that waits in `await_word`. Raises: as `sub_world`."""
    keep_alive_forever((world.communicator.Isend(word, dest, WORD_TAG), word))
    if world.group.shm is not None:
        world.group.shm.ring(dest)


def has_word(world: World) -> bool:
    """Take the next word of any rank, and return whether there was one. Raises: as `sub_world`."""
    message = world.communicator.Improbe(mpi().ANY_SOURCE, WORD_TAG)
    if message is None:
        return False
    message.Recv(bytearray())
    return True


def await_word(world: World, source: int, has_asked: Callable[[], bool] = lambda: False) -> bytes:
    """Return the next word of `source`, however long it takes; asleep but for a poll now and then.
    Send it an empty one as soon as `has_asked` holds.

    Raises: errors for which `is_recoverable` holds when `source` has died, or another rank recovers
            `world`.
    """
    communicator, status, bell = world.communicator, mpi().Status(), world.group.shm
    is_sent = False
    while True:
        rings = 0 if bell is None else bell.num_rings()  # a later ring ends the nap
        message = communicator.Improbe(source, WORD_TAG, status)
        if message is not None:
            word = bytearray(status.Get_count())
            message.Recv(word)
            return bytes(word)
        raise_if_left()  # checked once MPI has read arrived messages
        if not is_sent and has_asked():
            send_word(world, b"", source)
            is_sent = True
        if bell is None:
            time.sleep(NAP_S)
        else:
            bell.sleep(rings, NAP_S)
