"""Limit of waits for a stopped or stuck rank: it is killed, and the other ranks continue.

Ranks report while they wait (`records/wait_reports.py`). If one has waited for too long, the ranks
of its run that do not wait are its cause. A rank in a collective is therefore never killed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from phalanx.errors import UserError, print_note
from phalanx.jobs.allocation import Allocation
from phalanx.jobs.elsewhere import kill_elsewhere
from phalanx.jobs.leftovers import kill_process
from phalanx.records.wait_reports import WaitReport, read_reports

MARGIN_S = 1.0
"""Seconds for reports to arrive: a rank that arrived at the last moment has reported by then."""
FRESH_S = 2.0
"""Age of a report beyond which its rank may be stopped, too."""
_LOOK_EVERY_S = 0.25
_MAX_GAP_S = 1.0
"""Most seconds that count between two looks: beyond it this process was stopped, or had no core."""


class RankWait(NamedTuple):
    """State of a rank by its reports, on one clock."""

    report: WaitReport
    reported_at_s: float
    waited_at_s: float
    """Time at which it was last known to wait, or first heard of."""


def late_ranks(waits: Mapping[int, RankWait], now_s: float, patience_s: float) -> list[int]:
    """Return the ranks for which another has waited longer than `patience_s`. Pure."""
    limit_s = patience_s + MARGIN_S
    kept_waiting = {
        wait.report.group
        for wait in waits.values()
        if wait.report.waited_s >= limit_s and now_s - wait.reported_at_s < FRESH_S
    }
    return [
        rank
        for rank, wait in sorted(waits.items())
        if wait.report.group in kept_waiting
        and not wait.report.is_over
        and now_s - wait.waited_at_s > limit_s
    ]


def check_patience(patience_s: float | None, *, survive: bool) -> None:
    """Raises: UserError for a patience that is none, or that nobody survives."""
    if patience_s is None:
        return
    if not 0 < patience_s < float("inf"):
        raise UserError(f"--patience {patience_s:g} must be above 0: seconds")
    if not survive:
        raise UserError(
            f"--patience {patience_s:g} kills a rank that its peers wait for, and without "
            "--survive that ends all ranks: add --survive, or leave --patience out"
        )


class Patience:
    """Patience of a job with its ranks."""

    def __init__(self, folder: Path, patience_s: float, token: str, nodes: Allocation) -> None:
        """folder: of the reports. token: of the job, in the environment of its processes."""
        self._folder, self._patience_s, self._token = folder, patience_s, token
        self._nodes = nodes
        self._waits: dict[int, RankWait] = {}
        self._given_up: set[int] = set()
        self._looked_at_s = time.monotonic()
        self._now_s = 0.0
        """Time of a clock that stands still between polls."""

    def check(self) -> None:
        """Kill ranks for which others have waited too long, and report it. Called often."""
        gap_s = time.monotonic() - self._looked_at_s
        if gap_s < _LOOK_EVERY_S:
            return
        self._looked_at_s += gap_s
        self._now_s += min(gap_s, _MAX_GAP_S)
        self._look(self._now_s)
        for rank in late_ranks(self._waits, self._now_s, self._patience_s):
            report = self._waits[rank].report
            if rank not in self._given_up and self._kill(report):
                where = f" ({report.hostname})" if self._nodes.has_others else ""
                print_note(
                    f"rank {rank}{where} was killed after its peers had waited "
                    f"{self._patience_s:g} s for it (--patience)"
                )
            self._given_up.add(rank)

    def _look(self, now_s: float) -> None:
        for report in read_reports(self._folder):
            known = self._waits.get(report.rank)
            if known is not None and known.report == report:
                continue
            waited_at = now_s if known is None or report.waited_s else known.waited_at_s
            self._waits[report.rank] = RankWait(report, now_s, waited_at)

    def _kill(self, report: WaitReport) -> bool:
        """Kill a rank on its node; return whether it was there."""
        if report.hostname == socket.gethostname():
            return kill_process(self._token, report.process_id)
        return kill_elsewhere(
            self._nodes, self._token, hostname=report.hostname, pid=report.process_id
        )
