"""Note of a rank that it stops with a checkpoint when it is asked to, and that it has, for the
processes that have started it: `listening-<rank>.json` in the folder of its output.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from phalanx.jobs.rank_end import NOTES

State = Literal["listening", "stopped", "over"]


def note_state(rank: int, state: State) -> None:
    """Write down whether this rank listens, where anybody reads it. Never raises."""
    folder = os.environ.get(NOTES)
    if folder is None:
        return
    path = _file(Path(folder), rank)
    temporary = path.with_name(f".{path.name}")
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps(state))
        temporary.replace(path)


def is_listening(folder: Path) -> bool:
    """Return whether a rank has written that it listens."""
    return "listening" in _states(folder.glob(_file(folder, "*").name))


def has_stopped(folder: Path, rank: int) -> bool:
    """Return whether a rank has stopped as it was asked to, and has but to end its process."""
    return "stopped" in _states([_file(folder, rank)])


def _file(folder: Path, rank: int | str) -> Path:
    return folder / f"listening-{rank}.json"


def _states(paths: Iterable[Path]) -> set[str]:
    states = set()
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            states.add(json.loads(path.read_text()))
    return states
