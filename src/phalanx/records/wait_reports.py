"""Reports of ranks that wait for others: a small file a rank, written anew while it waits.

The command that started the ranks reads them. A rank that is stopped, or stuck in an endless loop,
is the one that does not say that it waits.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from phalanx.records.files import DECODE_ERRORS, write_atomically

WAIT_REPORTS = "PHALANX_WAIT_REPORTS"
"""Folder in which ranks report their waits; empty or unset: they do not."""
_NAME = "waits-{}.json"


class WaitReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of one rank, between its first step and the end of its run."""

    rank: int
    group: int  # first rank of those that train together
    hostname: str
    process_id: int
    number: int  # counts the rank's reports
    waited_s: float  # wait in the current collective; 0: it is in none
    is_over: bool = False  # its run has ended


def write_report(folder: Path, report: WaitReport) -> None:
    """Write a report over the one before. Raises: OSError."""
    path = folder / _NAME.format(report.rank)
    write_atomically(path, msgspec.json.encode(report), synced=False)


def read_reports(folder: Path) -> list[WaitReport]:
    """Return the newest report of each rank that has written one."""
    reports = []
    for path in folder.glob(_NAME.format("*")):
        try:
            reports.append(msgspec.json.decode(path.read_bytes(), type=WaitReport))
        except (OSError, *DECODE_ERRORS):  # a node's chunk of it has yet to come
            continue
    return reports


def remove_reports(folder: Path) -> None:
    """Remove them, once the ranks have ended."""
    for path in folder.glob(_NAME.format("*")):
        path.unlink(missing_ok=True)
