"""One clock for all ranks: how far a rank's own is from that of the first.

Processes of one machine read the same monotonic clock. Between machines the offset is estimated as
NTP does (RFC 5905): the first rank's clock was read in the middle between asking and hearing. It is
wrong by at most half of the shortest round trip; drift after that is not followed.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ROUND_TRIPS = 20


def offset_to_first(group: dist.ProcessGroup | None = None) -> float:
    """Seconds to add to `time.monotonic()` for what the first rank of `group` would read.

    Collective. Exactly 0 on the first rank's machine.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    machines = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(machines, torch.tensor([_machine(rank)]), group=group)
    offset_s = 0.0
    for other in range(1, size):
        if machines[other] == machines[0]:
            continue
        if rank == 0:
            _answer(other, group)
        elif rank == other:
            offset_s = _ask(group)
    return offset_s


def _machine(rank: int) -> int:
    """A number of the running kernel; where there is none to be had, every rank has its own."""
    try:
        return int(BOOT_ID.read_text().strip().replace("-", "")[:15], 16)
    except OSError:
        return -1 - rank


def _ask(group: dist.ProcessGroup | None) -> float:
    trips = []
    for _ in range(ROUND_TRIPS):
        reading = torch.zeros(1, dtype=torch.float64)
        asked_s = time.monotonic()
        dist.send(reading, group=group, group_dst=0)
        dist.recv(reading, group=group, group_src=0)
        heard_s = time.monotonic()
        trips.append((heard_s - asked_s, reading.item() - (asked_s + heard_s) / 2))
    return min(trips)[1]


def _answer(other: int, group: dist.ProcessGroup | None) -> None:
    for _ in range(ROUND_TRIPS):
        reading = torch.zeros(1, dtype=torch.float64)
        dist.recv(reading, group=group, group_src=other)
        reading[0] = time.monotonic()
        dist.send(reading, group=group, group_dst=other)
