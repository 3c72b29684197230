"""Doorbells in shared memory: a rank that waits for a message sleeps until its sender rings.

MPI makes progress only while it is called, so a waiting rank must poll; with many ranks per core
these polls take the time of the ranks that are waited for. With doorbells a waiting rank sleeps in
memory that the ranks of a machine share, and polls when a peer has rung: the peer has sent a
message, or has received one of this rank. A missed ring does no harm: the sleep has a timeout.
"""

from __future__ import annotations

from typing import Any


class Doorbell:
    """Doorbells of the ranks of one machine, as seen from one of them."""

    def __init__(self, shm: Any, module: Any) -> None:
        """shm: this rank's shared-memory group in C, which owns the memory."""
        self._shm = shm
        self._ring, self._rung, self._doze = module.ring, module.rung, module.doze

    def ring(self, rank: int) -> None:
        """Wake `rank`, if it sleeps; else it will not fall asleep before it has looked."""
        self._ring(self._shm, rank)

    def count(self) -> int:
        """Return how often this rank's bell was rung."""
        number: int = self._rung(self._shm)
        return number

    def doze(self, count: int, nap_s: float) -> None:
        """Sleep until somebody rings, at most `nap_s`; not at all when the count is not the same
        any more."""
        self._doze(self._shm, count, nap_s)
