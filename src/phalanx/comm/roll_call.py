"""Roll call of the ranks that wait: each passes on to few peers which it has heard of. Pure.

The first rank that has waited too long begins a roll call, named after what it waits in. Each rank
that hears of it while it waits, in whatever, adds itself, and passes on what is new to it. So a
rank exchanges messages with 2⌈log₂ p⌉ peers, those of a barrier; if each asked all, the ranks would
make p² connections just when something is wrong. Ranks that compute or have ended say nothing, and
news goes around them by other peers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

Heard = dict[str, int]
"""Ranks that wait, as the bits of a number, by what they wait in."""


def ring_peers(rank: int, size: int) -> list[int]:
    """Return the ranks at a distance of 1, 2, 4 … on both sides, on a ring of all."""
    distances = [2**exponent for exponent in range((size - 1).bit_length())]
    around = [(rank + far) % size for near in distances for far in (near, -near)]
    return [peer for peer in dict.fromkeys(around) if peer != rank]


class RollCall:
    """Roll call as far as one rank has heard of it."""

    def __init__(self, rank: int, size: int, asked: str) -> None:
        """asked: what the ranks that ask wait in."""
        self.rank, self.asked = rank, asked
        self.heard: Heard = {}
        self.peers = ring_peers(rank, size)
        """And ranks besides that have asked or answered."""
        self._has_news = False

    def begin(self) -> None:
        """Ask: this rank has waited too long."""
        self.hear({}, self.asked)
        self._has_news = True

    def hear(self, heard: Heard, activity: str, source: int | None = None) -> bool:
        """Take in what rank `source` has heard, while this rank waits in `activity`; return whether
        that one lacks something which `take_news` does not bring it."""
        if source is not None and source not in self.peers:
            self.peers.append(source)
        for waits_in, ranks in [*heard.items(), (activity, 1 << self.rank)]:
            known = self.heard.get(waits_in, 0)
            self._has_news |= bool(ranks & ~known)
            self.heard[waits_in] = known | ranks
        lacks = any(ranks & ~heard.get(waits_in, 0) for waits_in, ranks in self.heard.items())
        return lacks and not self._has_news

    def take_news(self) -> Sequence[int]:
        """Return the peers that all is to be passed on to now: none without news."""
        has_news, self._has_news = self._has_news, False
        return self.peers if has_news else ()

    def missing(self, ranks: Sequence[int]) -> list[int]:
        """Return those of `ranks` of which nothing was heard."""
        waiting = self._waiting()
        return [rank for rank in ranks if not waiting >> rank & 1]

    def elsewhere(self, ranks: Sequence[int]) -> dict[int, str]:
        """Return those of `ranks` that wait in something else, with that."""
        here = self.heard.get(self.asked, 0)
        found: dict[int, str] = {}
        for activity, some in self.heard.items():
            found |= {rank: activity for rank in ranks if (some & ~here) >> rank & 1}
        return found

    def is_first(self) -> bool:
        """Return whether this is the first rank of those heard of, which is to ask the missing
        itself: they may be waiting where no peer of these has a peer."""
        waiting = self._waiting()
        return waiting & -waiting == 1 << self.rank

    def encode(self) -> str:
        ranks = {activity: f"{some:x}" for activity, some in self.heard.items()}
        return json.dumps([self.asked, ranks])

    def _waiting(self) -> int:
        ranks = 0
        for some in self.heard.values():
            ranks |= some
        return ranks


def decode(text: str) -> tuple[str, Heard]:
    """Return what is asked, and what a peer has heard."""
    asked, ranks = json.loads(text)
    return asked, {activity: int(some, 16) for activity, some in ranks.items()}
