"""Records that end before their run, which their disk has taken no more of."""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec.structs import replace

from phalanx.errors import print_note
from phalanx.records.events import NoticeEvent
from phalanx.records.files import RECORDS_END, rank_file, read_events
from phalanx.records.schema import Outcome


def add_incomplete(outcome: Outcome, num_ended: int, ranks: int, why: str) -> Outcome:
    """Return the outcome of a run, which says of how many ranks records end before it.

    why: file and reason, of one of them.
    """
    if not num_ended:
        return outcome
    text = f"records of {num_ended} of {ranks} ranks end before it: {why}"
    return replace(outcome, error="; ".join(filter(None, [outcome.error, text])))


def read_incomplete(outcome: Outcome, folder: Path, ranks: int) -> Outcome:
    """Return as `add_incomplete`, from the records of the ranks."""
    whys = [
        event.text.removeprefix(RECORDS_END)
        for rank in range(ranks)
        for event in _events(rank_file(folder, rank))
    ]
    return add_incomplete(outcome, len(whys), ranks, next(iter(whys), ""))


def _events(path: Path) -> list[NoticeEvent]:
    with contextlib.suppress(OSError, ValueError):
        notices = [event for event in read_events(path) if isinstance(event, NoticeEvent)]
        return [event for event in notices if event.text.startswith(RECORDS_END)][:1]
    return []


def report_incomplete(outcome: Outcome) -> None:
    """Print where records end before their run, which has come to its end."""
    if outcome.status == "completed" and outcome.error:
        print_note(f"the run completed; {outcome.error}")
