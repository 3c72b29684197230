"""Ranks of a measurement, which are launched as a program of the user's is.

The program gets its options as JSON and, by PHALANX_RUN_DIR, the folder of its records. Whoever
starts them imports neither torch nor MPI: it starts at once and survives crashes of the ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from phalanx.errors import UserError
from phalanx.jobs.launch_program import Launch, program_words
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.ranks import RankRequest
from phalanx.jobs.record import RUN_DIR, begin_record, closed_on_error, end_record
from phalanx.jobs.relayed import local_folder
from phalanx.records.collectives import ProgressEvent
from phalanx.records.events import Event
from phalanx.records.failures import EXIT_BAD_INPUT
from phalanx.records.files import EventWriter, rank_file
from phalanx.records.io import IoProgressEvent
from phalanx.records.schema import JobRecord, Outcome


@contextmanager
def recorded_job(folder: Path, record: JobRecord, console: Console) -> Iterator[LiveLine]:
    """Keep the record of a measurement, which is made in the block; yield its progress line.

    The outcome is always written.
    """
    begin_record(folder, record)
    with closed_on_error(folder, type(record)):
        with LiveLine(console) as line:
            yield line
        end_record(folder, type(record), Outcome(status="completed"))


def run_ranks(
    module: str,
    options: Mapping[str, Any],
    folder: Path,
    *,
    ranks: RankRequest,
    line: LiveLine,
    phase: str = "",
    words: Callable[[str], str] = str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run `python -m module OPTIONS` on new ranks, with records and logs in `folder`.

    line: shows what rank 0 announces, in `words` of it, as progress of the phase.
    environment: further variables of the ranks.
    Raises: RunFailedError or UserError, as `Launch.run`.
    """

    def show(events: list[Event]) -> None:
        for event in events:
            if isinstance(event, ProgressEvent | IoProgressEvent):
                line.show_phase(phase, words(event.doing), event.done / event.total)

    Launch(
        words=program_words(["-m", module, json.dumps(options, default=str)]),
        ranks=ranks,
        show=show,
        environment=environment,
    ).run(folder)


@contextmanager
def launched_rank() -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield the options and the folder of the records of a rank that `run_ranks` started.

    A UserError in the block ends the rank with the exit code of bad input.
    """
    folder = Path(os.environ[RUN_DIR])
    try:
        yield json.loads(sys.argv[1]), local_folder(folder) or folder
    except UserError as error:
        print(f"phalanx: {error}", file=sys.stderr, flush=True)
        sys.exit(EXIT_BAD_INPUT)


class RankRecords:
    """The file of a rank's events, each with the time since the file was opened."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._began, self._is_first = time.monotonic(), rank == 0
        self._writer = EventWriter(rank_file(folder, rank))

    def add(self, kind: Callable[..., Event], **fields: Any) -> None:
        self._writer.add(kind(at_s=round(time.monotonic() - self._began, 6), **fields))

    def announce(self, kind: Callable[..., Event], done: int, total: int, doing: str) -> None:
        """Write what is done next, on rank 0, where it is seen at once."""
        if self._is_first:
            self.add(kind, done=done, total=total, doing=doing)
            self.flush()

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
