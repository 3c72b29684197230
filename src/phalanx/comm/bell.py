"""Ranks of a node that wait for messages sleep, and are woken by those who send.

MPI moves a message on while somebody asks for it, so a waiting rank must look again and again; with
many ranks a core these looks take the time of those who are waited for. Here a rank that waits
sleeps in memory that the node shares, and looks when a peer has rung: the peer has sent something,
or has taken what this rank sent. A bell that nobody rang is no harm: sleep ends by itself.
"""

from __future__ import annotations

from typing import Any


class Bell:
    """Those of the ranks of one node, as seen from one of them."""

    def __init__(self, node: Any, module: Any) -> None:
        """node: this rank's side of it, in C, which owns the memory."""
        self._node = node
        self._ring, self._rung, self._doze = module.ring, module.rung, module.doze

    def ring(self, rank: int) -> None:
        """Wake `rank`, if it sleeps; else it will not fall asleep before it has looked."""
        self._ring(self._node, rank)

    def count(self) -> int:
        """How often this rank was rung for."""
        number: int = self._rung(self._node)
        return number

    def doze(self, count: int, nap_s: float) -> None:
        """Sleep until somebody rings, at most `nap_s`; not at all when the count is not the same
        any more."""
        self._doze(self._node, count, nap_s)
