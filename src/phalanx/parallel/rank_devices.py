"""Devices of the ranks of a job, each rank's known to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from phalanx.comm.world import World

MAX_NAMED = 4
"""Devices, and ranks of one, that a line names."""


class RankDevice(NamedTuple):
    """The device of one rank."""

    host: str
    name: str
    """Its name with its index, such as `cuda:1`."""
    identity: str
    """UUID where its vendor tells one, as a rank may see a part of the devices, each as the first;
    else its name."""
    num_seen: int
    """Number of devices of its kind that the rank sees."""
    has_nccl: bool

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def place(self) -> tuple[str, str]:
        """Return host and identity."""
        return self.host, self.identity


def gather_devices(world: World, device: torch.device) -> list[RankDevice]:
    """Return the devices of all ranks, by rank. Collective; one small sum where all are the CPU.

    device: of this rank, with its index unless it is the CPU.
    """
    is_cpu = device.type == "cpu"
    num_seen = 1 if is_cpu else torch.accelerator.device_count()
    own = RankDevice(
        world.hostname, str(device), _identity(device), num_seen, dist.is_nccl_available()
    )
    num_accelerators = np.array([float(not is_cpu)])
    world.all_reduce(num_accelerators)
    if not num_accelerators[0]:
        return [own] * world.size
    return [world.share(own, root=rank) for rank in range(world.size)]


def _identity(device: torch.device) -> str:
    describe = getattr(getattr(torch, device.type, None), "get_device_properties", None)
    found = None if describe is None or device.type == "cpu" else describe(device)
    return str(getattr(found, "uuid", device))


def kinds_of(devices: Sequence[RankDevice]) -> str:
    """Return the kinds of the devices, such as `cpu cuda`. Pure."""
    return " ".join(sorted({each.kind for each in devices}))


def describe_sharing(devices: Sequence[RankDevice]) -> str:
    """Return a line on accelerators that several ranks have; empty: there are none. Pure."""
    ranks_of: dict[tuple[str, str], list[int]] = {}
    for rank, each in enumerate(devices):
        if each.kind != "cpu":
            ranks_of.setdefault(each.place, []).append(rank)
    shared = {place: ranks for place, ranks in ranks_of.items() if len(ranks) > 1}
    if not shared:
        return ""
    named = [
        f"{devices[ranks[0]].name} on {host} (ranks {_listed(ranks)})"
        for (host, _), ranks in shared.items()
    ]
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    some, ranks = next(iter(shared.items()))
    num_used, num_seen = sum(host == some[0] for host, _ in ranks_of), devices[ranks[0]].num_seen
    mend = (
        f"; {num_seen} devices are visible there, {num_used} used: distribute the ranks by an "
        f'index, such as device="{devices[ranks[0]].kind}:{num_seen - 1}"'
        if num_used < num_seen
        else ""
    )
    return f"ranks share a device: {', '.join(named[:MAX_NAMED])}{more}{mend}"


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - MAX_NAMED} others" if len(ranks) > MAX_NAMED else ""
    return ", ".join(map(str, ranks[:MAX_NAMED])) + more
