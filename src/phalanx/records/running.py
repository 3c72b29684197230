"""A run's folder when it begins: `run.json`, running."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from phalanx.errors import UserError
from phalanx.records.closing import now
from phalanx.records.files import create
from phalanx.records.owner import this_process
from phalanx.records.schema import Environment, Outcome, Run, Setting


def begin_run(
    folder: Path,
    *,
    study: str,
    command: Sequence[str],
    config: dict[str, object],
    setting: Setting,
    environment: Environment,
) -> None:
    """Make the folder and write `run.json`, running.

    Raises: UserError when the folder holds another run's records or cannot be written.
    """
    run = Run(
        study=study,
        run=folder.name,
        command=shlex.join(command),
        config=config,
        setting=setting,
        environment=environment,
        outcome=Outcome(status="running"),
        started_at=now(),
        owner=this_process(),
    )
    try:
        create(folder / "run.json", run)
    except FileExistsError:
        message = f"--run-dir {folder} already holds the records of a run: name another"
        raise UserError(message) from None
    except OSError as error:
        raise UserError(f"records cannot be written to {folder}: {error.strerror}") from error
