"""Stopwatch of an unchanged state, fed by polling."""

from __future__ import annotations

from collections.abc import Hashable

MAX_GAP_S = 1.0
"""Longest gap between two polls that counts; after a longer one this process was stopped itself."""


class StateClock:
    """Seconds for which one and the same state has been seen."""

    def __init__(self) -> None:
        self.lasted_s = 0.0
        self._state: Hashable | None = None
        self._seen_at_s = 0.0

    def see(self, state: Hashable | None, now_s: float) -> float:
        """Return the seconds so far, after a look at the state that there is now; None: 0."""
        gap_s, self._seen_at_s = now_s - self._seen_at_s, now_s
        if state is None or state != self._state:
            self.lasted_s = 0.0
        else:
            self.lasted_s += min(gap_s, MAX_GAP_S)
        self._state = state
        return self.lasted_s
