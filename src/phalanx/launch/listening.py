"""Note of a rank that it stops with a checkpoint when it is asked to, for the command that has
started it: `listening-<rank>.json` in the folder of its output.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from phalanx.launch.rank_failure import NOTES


def note_listening(rank: int, is_listening: bool) -> None:
    """Write down whether this rank listens, where anybody reads it. Never raises."""
    folder = os.environ.get(NOTES)
    if folder is None:
        return
    path = Path(folder) / f"listening-{rank}.json"
    temporary = path.with_name(f".{path.name}")
    with contextlib.suppress(OSError):
        temporary.write_text("true" if is_listening else "false")
        temporary.replace(path)


def is_listening(folder: Path) -> bool:
    """Return whether a rank has written that it listens."""
    with contextlib.suppress(OSError):
        return any(path.read_text() == "true" for path in folder.glob("listening-*.json"))
    return False
