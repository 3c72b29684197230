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
        self._ring = module.ring
        self._num_rings, self._sleep = module.num_rings, module.sleep_until_rung

    def ring(self, rank: int) -> None:
        """Wake `rank` if it sleeps; else it will poll once more before it sleeps."""
        self._ring(self._shm, rank)

    def num_rings(self) -> int:
        """Return how often this rank's bell was rung."""
        number: int = self._num_rings(self._shm)
        return number

    def sleep(self, num_rings: int, nap_s: float) -> None:
        """Sleep until a peer rings, at most `nap_s`; return at once if `num_rings` is outdated."""
        self._sleep(self._shm, num_rings, nap_s)
