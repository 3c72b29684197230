"""End of a job with survival whose ranks have not met yet when one dies.

Until then Open MPI has those that are left wait for the dead, without end.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from phalanx.jobs.rank_end import has_joined, read_failures
from phalanx.jobs.state_clock import StateClock

JOIN_S = 2.0
"""Time for ranks that have met to write it down, after a death."""


class EarlyDeath:
    """Poll for a death that nobody can survive."""

    def __init__(self, folder: Path, ranks: int) -> None:
        """folder: of the logs of the ranks."""
        self._folder, self._ranks = folder, ranks
        self._clock, self._has_joined = StateClock(), False

    def why(self, *, is_over: bool = False) -> str:
        """Return which rank has died before all had met; empty where none has.

        is_over: the job has ended with an error, and nobody writes any more that all had met.
        """
        if self._has_joined:
            return ""
        died = next(iter(read_failures(self._folder)), None)
        if died is None or died.exit_code >= 0:
            return ""
        self._has_joined = has_joined(self._folder, self._ranks)
        waited_s = self._clock.see(died.rank, time.monotonic())
        if self._has_joined or (waited_s < JOIN_S and not is_over):
            return ""
        return (
            f"rank {died.rank} died ({signal.Signals(-died.exit_code).name}) before all ranks had "
            "met, which the others cannot survive: --restarts N starts all again"
        )
