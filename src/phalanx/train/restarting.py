"""A run of `phalanx train` as a job whose ranks can be started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from phalanx.checkpoints.folder import check_unlocked, readable_folders
from phalanx.errors import UserError
from phalanx.jobs.restarts import Attempt, Resumption
from phalanx.train.config import TrainConfig
from phalanx.train.job import run_job
from phalanx.train.run import complete
from phalanx.train.training_options import AUTOMATIC

ENDING_S = 10.0
"""For a rank that has given up, or was killed, to let go of its files."""


@dataclass(kw_only=True)
class TrainingJob:
    """A training on ranks that `phalanx train` starts."""

    asked: TrainConfig
    """As the user gave it."""
    config: TrainConfig
    """Complete."""
    command: Sequence[str]
    console: Console
    check: Callable[[], None] = lambda: None
    """Called again and again while they run; what it raises ends them."""

    def start(self, attempt: Attempt) -> None:
        """Train to the end; raises as `run_job`."""
        run_job(
            self.config,
            attempt.folder,
            study="train",
            command=self.command,
            console=self.console,
            check=self.check,
        )

    def prepare(self, attempt: Attempt, former: Attempt) -> Resumption:
        """Complete the configuration anew, on the nodes that are left.

        Raises: UserError where it does not fit them, or no checkpoint can be read.
        """
        saved, given = self.asked.checkpoint_dir, self.asked.resume
        if saved is not None:
            _wait_for(saved, self.asked.timeout_s + ENDING_S)
        resume = AUTOMATIC if saved is not None and readable_folders(saved) else given
        notices: list[str] = []
        self.config, _ = complete(
            replace(self.asked, ranks=attempt.ranks, resume=resume),
            None,
            notices,
            is_restart=True,
        )
        found = self.config.resume
        if found is None:
            why = "no checkpoint was written" if saved else "without --checkpoint-dir"
            notices = [f"from the beginning: {why}"]
        changed = ""
        if attempt.ranks != former.ranks:
            bits = "to the same bits" if self.config.bitwise else "sums differ by rounding"
            changed = f"{attempt.ranks} ranks in place of {former.ranks}, {bits}"
        return Resumption(None if found is None else str(found), "; ".join(notices), changed)


def _wait_for(folder: Path, within_s: float) -> None:
    """Wait until the ranks before have let go of their checkpoints: one that was cut off does when
    it gives up. Raises: UserError where they have not in time."""
    until = time.monotonic() + within_s
    while True:
        try:
            return check_unlocked(folder)
        except UserError:
            if time.monotonic() > until:
                raise
        time.sleep(0.05)
