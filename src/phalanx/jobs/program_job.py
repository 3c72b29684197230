"""A program of the user's as a job whose ranks can be started again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.jobs.allocation import allocation, max_local_ranks
from phalanx.jobs.binding import pool_threads
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.first_rank import Output
from phalanx.jobs.installation import MpiInstallation
from phalanx.jobs.job import DEFAULT_STOP_S
from phalanx.jobs.launch_program import check_completed, launch_program
from phalanx.jobs.restarts import RESTART, Attempt, Resumption
from phalanx.jobs.survival import SPARES
from phalanx.records.files import read_run, record_file
from phalanx.records.progress import newest_saved
from phalanx.records.schema import Run


@dataclass(kw_only=True)
class ProgramJob:
    """A program of the user's on ranks that `phalanx launch` starts."""

    words: Sequence[str]
    threads: int | None
    """Threads of each rank; None: by the variable of a thread pool, or the cores of its node."""
    mpi: MpiInstallation | None
    output: Output
    """Takes that of rank 0."""
    environment: Callable[[Path], Mapping[str, str]]
    """Variables of ranks whose folder that is."""
    survive: bool = False
    spares: int = 0
    """Ranks beside the others that wait to take the places of those that die."""
    patience_s: float | None = None
    """Seconds for which a rank may keep the others waiting."""
    grace_s: float = DEFAULT_STOP_S
    """Seconds for ranks that listen to save and stop after SIGTERM."""
    is_supervised: bool = False
    """True if the run's own record decides that it has ended well."""
    check: Callable[[], None] = lambda: None
    """Called again and again while they run; what it raises ends them."""
    _checkpoint: Path | None = None

    def start(self, attempt: Attempt) -> list[int]:
        """Run the ranks to their end; return those that died, as `launch_program`."""
        environment = dict(self.environment(attempt.folder))
        if attempt.number:
            environment[RESTART] = str(attempt.number)
        if self.spares:
            environment[SPARES] = str(self.spares)
        lost = launch_program(
            attempt.folder,
            self.words,
            ranks=attempt.ranks + self.spares,
            threads=self._threads_of(attempt.ranks),
            mpi=self.mpi,
            output=self.output,
            environment=environment,
            survive=self.survive,
            patience_s=self.patience_s,
            check=self.check,
            grace_s=self.grace_s,
        )
        if self.is_supervised:
            check_completed(attempt.folder)
        return lost

    def prepare(self, attempt: Attempt, former: Attempt) -> Resumption:
        """Name the newest checkpoint that the records tell of: rank 0 looks for it itself."""
        self._checkpoint = newest_saved(former.folder) or self._checkpoint
        if self._checkpoint is not None:
            text = f"from the newest complete checkpoint, up to {self._checkpoint}"
        elif record_file(former.folder, Run).exists():
            text = "from the beginning: it has written no checkpoint"
        else:
            text = "from the beginning, but for what the program keeps itself"
        changed = "" if attempt.ranks == former.ranks else _changed(former, attempt.ranks)
        checkpoint = None if self._checkpoint is None else str(self._checkpoint)
        return Resumption(checkpoint, text, changed)

    def _threads_of(self, ranks: int) -> int | None:
        nodes, asked = allocation(os.environ), self.threads or pool_threads(os.environ)
        if asked is not None or nodes.has_others:
            return asked
        return max(1, usable_cores() // max_local_ranks(ranks, nodes.slots))


def _changed(former: Attempt, ranks: int) -> str:
    """Return what another number of ranks changes in the results."""
    before = f"{ranks} ranks in place of {former.ranks}"
    if not record_file(former.folder, Run).exists():
        return before
    options = read_run(former.folder).setting.options
    if options.get("bitwise"):
        return f"{before}, to the same bits"
    if options.get("micro_batches"):
        return f"{before}: sums are made in another order, and differ by rounding"
    return (
        f"{before}: global batches stay, and are cut into as many micro-batches: sums differ by "
        "rounding, and dropout draws other numbers"
    )
