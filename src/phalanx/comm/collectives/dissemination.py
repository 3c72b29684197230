"""A barrier on messages."""

from __future__ import annotations

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import UINT8
from phalanx.comm.transport import Transport


def barrier(transport: Transport) -> None:
    """Return when every rank has come.

    Cost:   ⌈log₂ p⌉ rounds of an empty message: ⌈log₂ p⌉ · latency.
    Source: Hensgen, Finkel & Manber 1988, doi:10.1007/BF01379320.
    """
    rank, size = transport.rank, transport.size
    nothing = Buffer(0, 0, UINT8)
    distance = 1
    while distance < size:
        to, source = (rank + distance) % size, (rank - distance) % size
        transport.exchange([(nothing, to)], [(nothing, source)])
        distance *= 2
