"""A program of the user's as a job whose ranks can be started again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.errors import JobLostError
from phalanx.jobs.launch_program import Launch
from phalanx.jobs.record import close_running
from phalanx.jobs.restarts import RESTART, Attempt, Resumption
from phalanx.records.files import read_run, record_file
from phalanx.records.progress import newest_saved, position_of
from phalanx.records.schema import Outcome, Run


@dataclass(kw_only=True)
class ProgramJob:
    """A program of the user's on ranks that `phalanx launch` starts."""

    launch: Launch
    """First start; None for its threads: by the variable of a thread pool, or the cores of a rank's
    node."""
    is_supervised: bool = False
    """True if the run's own record decides that it has ended well."""
    checkpoints: Path | None = None
    """Folder of its checkpoints, where that is known: a rank may die before it records the last."""
    _records: list[Path] = field(default_factory=list)
    """Folders of the starts before."""

    def start(self, attempt: Attempt) -> list[int]:
        """Run the ranks to their end; return those that died, as `Launch.run`."""
        environment = dict(self.launch.environment)
        if attempt.number:
            environment[RESTART] = str(attempt.number)
        ranks = self.launch.ranks.on(attempt.ranks)
        launch = replace(self.launch, ranks=ranks, environment=environment)
        lost = launch.run(attempt.folder)
        if self.is_supervised:
            _check_completed(attempt.folder)
        return lost

    def prepare(self, attempt: Attempt, former: Attempt) -> Resumption:
        """Name the newest checkpoint that the records tell of, or that is seen here: rank 0 looks
        for it itself."""
        self._records.append(former.folder)
        named = [newest_saved(folder, silent=attempt.silent) for folder in self._records]
        seen = [] if self.checkpoints is None else self.checkpoints.glob("epoch-*")
        found = [path for path in (*named, *seen) if path is not None]
        newest = max(found, key=lambda path: position_of(path.name), default=None)
        if newest is not None:
            text = f"from the newest complete checkpoint, up to {newest}"
        elif (lost := newest_saved(former.folder)) is not None:
            text = f"from the files that remain: {lost} is on a host that does not answer"
        elif record_file(former.folder, Run).exists():
            text = "from the beginning, since its records name no checkpoint"
        else:
            text = "from the beginning, except for what the program itself saved"
        changed = "" if attempt.ranks == former.ranks else _changed(former, attempt.ranks)
        checkpoint = None if newest is None else str(newest)
        return Resumption(checkpoint, text, changed)


def _changed(former: Attempt, ranks: int) -> str:
    """Return what another number of ranks changes in the results."""
    before = f"{ranks} ranks in place of {former.ranks}"
    if not record_file(former.folder, Run).exists():
        return before
    options = read_run(former.folder).setting.options
    if options.get("bitwise"):
        return f"{before}, to the same bits"
    if options.get("micro_batches"):
        return f"{before}: the order of sums changes, so they differ by rounding"
    return (
        f"{before}: global batches stay the same, but are split into as many micro-batches: sums "
        "differ by rounding, and dropout draws differ"
    )


def _check_completed(folder: Path) -> None:
    """Raises: JobLostError where ranks that the launcher calls successful have begun a run, and
    have not written down its end."""
    if record_file(folder, Run).exists() and read_run(folder).outcome.status == "running":
        error = "the launcher reported success, but the run did not record its end"
        close_running(folder, Run, Outcome(status="failed", error=error))
        raise JobLostError(f"{error}\n  output of the ranks: {folder / 'rank-*.log'}")
