"""Recovery of a world in which ranks have died: the survivors continue in a new one.

Survivors notice a death at different moments and places, or not at all, as they wait for a rank
that has already left. So the first step is to free the others: a revoked communicator ends MPI's
calls on every rank, and waits in shared memory poll for it (`faults.py`). Then all survivors meet,
the communicator shrinks to them, and they make a new world on it. A death meanwhile makes that fail
on some rank: the survivors agree on that, and start again.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.comm.errors import PeerDepartedError, PeerFailedError
from phalanx.comm.failure_detector import FailureDetector
from phalanx.comm.faults import (
    fault_in,
    is_fault_tolerant,
    ranks_in,
    unwatch,
    watch,
    watched,
)
from phalanx.comm.in_flight import keep_alive_forever
from phalanx.comm.mpi import mpi
from phalanx.comm.rank_labels import RankLabels
from phalanx.comm.set_up import await_call
from phalanx.comm.sub_world import heir_of
from phalanx.comm.wait import WaitPolicy
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.jobs.survival import why_not_survived


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A world of the survivors."""

    world: World
    """World of their ranks in the old one, in the same order, without gaps."""
    lost: tuple[int, ...]
    """Original ranks of those that died."""
    progress: tuple[int, ...]
    """Progress that each rank of the new world reported."""
    attempts: int
    """Begun; more than 1 when ranks died meanwhile."""
    seconds: float


def is_recoverable(error: BaseException) -> bool:
    """Return whether an error of a collective may be due to the death of a rank, after which
    `recover` continues."""
    if not is_fault_tolerant() or isinstance(error, PeerDepartedError):
        return False
    return isinstance(error, PeerFailedError) or fault_in(error) is not None


def finish(world: World) -> bool:
    """Close `world` when all survivors have completed; else return False on all that have: a rank
    calls `recover`, and so must they.

    Without it a rank may end while another, for whom the last collective has failed, waits for it
    in `recover` for ever. Collective; with `World.close` where MPI ends all ranks when one dies.
    Raises: WaitTimeoutError naming the survivors that did not come.
    """
    if world.rendezvous is None:
        world.close()
        return True
    detector = _survivors(world, None, "the end")
    unwatch(world.communicator)  # the recovering rank revokes it, and reports that in the agreement
    world.is_met = not _agree(world.communicator, True, detector)
    detector.close()
    if not world.is_met:
        world.close_abandoned()
    return not world.is_met


def recover(world: World, *, progress: int = 0, timeout_s: float | None = None) -> Recovery:
    """Return a world of the ranks that are left; `world` and its groups cannot be used any more.

    Called by every survivor, after an error for which `is_recoverable` holds; ranks that still wait
    in any group of `world` get such an error. What the interrupted collective had written is
    undefined, and some ranks may have completed it.

    progress: of this rank, such as the steps it has finished. timeout_s: for survivors to arrive;
    None: the world's.
    Raises: UserError if MPI ends all ranks when one dies; WaitTimeoutError naming the survivors
        that did not arrive.
    """
    if world.rendezvous is None:
        raise UserError(f"ranks have died: {why_not_survived(os.environ, world.library)}")
    began = time.monotonic()
    world.abandon()
    detector = _survivors(world, timeout_s, "recovery")
    if not world.is_met:  # Shrink has no timeout, and then need not wait
        _agree(world.communicator, False, detector)
    communicator, made, attempts = world.communicator, None, 0
    while made is None:
        attempts += 1
        communicator, made = _attempt(communicator, world, progress, detector)
    detector.close()
    new, everyone = made
    world.hand_over(new)
    world.close_abandoned()
    return Recovery(
        world=new,
        lost=tuple(sorted(set(world.original_ranks) - set(new.original_ranks))),
        progress=tuple(everyone),
        attempts=attempts,
        seconds=time.monotonic() - began,
    )


def _survivors(world: World, timeout_s: float | None, activity: str) -> FailureDetector:
    """Return a failure detector for waits for the survivors alone."""
    hosts, size = world.group.labels.hosts, world.rendezvous.Get_size()
    detector = FailureDetector(
        world.rendezvous,
        group="world",
        labels=RankLabels(members=tuple(range(size)), hosts=hosts if len(hosts) == size else ()),
        policy=WaitPolicy.for_network(),
        timeout_s=world.timeout_s if timeout_s is None else timeout_s,
        survivors=True,
    )
    detector.activity = activity
    return detector


def _attempt(
    communicator: Any, world: World, progress: int, detector: FailureDetector
) -> tuple[Any, tuple[World, list[int]] | None]:
    """Shrink `communicator` and make a world on it; return both, without the world where somebody
    could not."""
    shrunk = await_call(detector, communicator.Shrink)
    new, everyone = None, list[int]()
    try:
        with watched(shrunk):
            ranks = ranks_in(world.communicator.Get_group(), shrunk.Get_group())
            new = heir_of(world, shrunk, [world.original_ranks[rank] for rank in ranks])
            everyone = new.exchange(progress)
    except Exception as error:
        if new is not None:
            new.abandon()
        if not is_recoverable(error):
            raise
    if _agree(shrunk, bool(everyone), detector) and new is not None:
        watch(shrunk)  # not before: whoever could not has revoked it
        return shrunk, (new, everyone)
    if new is not None:
        new.abandon()
        new.close_abandoned()
    return shrunk, None


def _agree(communicator: Any, is_well: bool, detector: FailureDetector) -> bool:
    """Return whether all is well on all living ranks of `communicator`, the same on each of them;
    it may be revoked. Raises: WaitTimeoutError naming those that did not come."""
    flag = np.array([is_well], np.int32)
    request = communicator.Iagree(flag)

    def is_over() -> bool:
        try:
            return bool(request.Test())
        except mpi().Exception as error:
            if fault_in(error) != "died":
                raise
            return True  # the flag is that of the living

    try:
        detector.until(is_over)
    except BaseException:
        keep_alive_forever((request, flag))
        raise
    return bool(flag[0])
