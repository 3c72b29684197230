"""End of a job with survival whose ranks have not met yet when one dies.

Until then Open MPI has those that are left wait for the dead, without end.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from phalanx.launch.rank_failure import has_joined
from phalanx.launch.rank_log import read_failures
from phalanx.launch.state_clock import StateClock

JOIN_S = 2.0
"""For ranks that have met to write it down, after a death."""


class EarlyDeath:
    """Poll for a death that nobody can survive."""

    def __init__(self, folder: Path, ranks: int) -> None:
        """folder: of the logs of the ranks."""
        self._folder, self._ranks = folder, ranks
        self._clock, self._has_joined = StateClock(), False

    def why(self) -> str:
        """Return which rank has died before all had met; empty where none has."""
        if self._has_joined:
            return ""
        died = next((each for each in read_failures(self._folder) if each.exit_code < 0), None)
        if died is None:
            return ""
        self._has_joined = has_joined(self._folder, self._ranks)
        if self._has_joined or self._clock.see(died.rank, time.monotonic()) < JOIN_S:
            return ""
        return (
            f"rank {died.rank} died ({signal.Signals(-died.exit_code).name}) before all ranks had "
            "met, which the others cannot survive: --restarts N starts all again"
        )
