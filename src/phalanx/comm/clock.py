"""One clock for all ranks: how far a rank's own is from that of the first.

Processes of one machine read the same monotonic clock. Between machines the offset is estimated as
NTP does (RFC 5905): the first rank's clock was read in the middle between asking and hearing. It is
wrong by at most half of the shortest round trip. Drift is not followed here; who reads twice can
take it as linear in between.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phalanx.comm.buffer import Buffer
from phalanx.comm.group import Group
from phalanx.records.spans import ClockReading, now_ns

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ROUND_TRIPS = 20
TAG = 2**15 - 3


def estimate_offset(group: Group) -> ClockReading:
    """Estimate the offset from this rank's `now_ns()` to the clock of the first rank of `group`.

    Collective. Exactly 0 on the first rank's machine.
    """
    own = np.array([machine(group.rank)])
    machines = np.zeros((group.size, 1), own.dtype)
    group.all_gather([Buffer.of(row) for row in machines], Buffer.of(own))
    offset_ns = error_ns = 0
    for other in range(1, group.size):
        if machines[other] == machines[0]:
            continue
        if group.rank == 0:
            _serve_readings(group, other)
        elif group.rank == other:
            offset_ns, error_ns = _measure_offset(group)
    return ClockReading(at_ns=now_ns(), offset_ns=offset_ns, error_ns=error_ns)


def machine(rank: int) -> int:
    """A number of the running kernel; where there is none to be had, every rank has its own."""
    try:
        return int(BOOT_ID.read_text().strip().replace("-", "")[:15], 16)
    except OSError:
        return -1 - rank


def _measure_offset(group: Group) -> tuple[int, int]:
    """Offset and its largest error, by the shortest of some round trips."""
    trips = []
    reading = np.zeros(1, np.int64)
    for _ in range(ROUND_TRIPS):
        asked_ns = now_ns()
        group.send(Buffer.of(reading), dest=0, tag=TAG).wait()
        group.receive(Buffer.of(reading), source=0, tag=TAG).wait()
        heard_ns = now_ns()
        trips.append((heard_ns - asked_ns, int(reading[0]) - (asked_ns + heard_ns) // 2))
    took_ns, offset_ns = min(trips)
    return offset_ns, took_ns // 2


def _serve_readings(group: Group, other: int) -> None:
    reading = np.zeros(1, np.int64)
    for _ in range(ROUND_TRIPS):
        group.receive(Buffer.of(reading), source=other, tag=TAG).wait()
        reading[0] = now_ns()
        group.send(Buffer.of(reading), dest=other, tag=TAG).wait()
