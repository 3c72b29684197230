"""What ranks and their launcher wrote to no record: `launcher.log`."""

from __future__ import annotations

import re
from pathlib import Path

LAUNCHER_LOG = "launcher.log"

_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?:: .*)?$")
LONGEST = 300
"""Characters of a last word that are shown."""


def read_log(folder: Path) -> str:
    """Empty where there is none."""
    path = folder / LAUNCHER_LOG
    return path.read_text(errors="replace") if path.exists() else ""


def last_words(folder: Path) -> str | None:
    """The error that a rank ended with before it could write one down: the line below a traceback
    of Python. None where there is none: then it was killed, or MPI did not start."""
    lines = read_log(folder).splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("Traceback (most")]
    for line in lines[begins[0] + 1 :] if begins else []:
        if not line.startswith(" ") and _ERROR.match(line):
            return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
    return None


def why_silent(folder: Path) -> str:
    """A sentence: why ranks ended that wrote no error down."""
    words = last_words(folder)
    if words is not None:
        return f"The first error in {LAUNCHER_LOG}: {words}"
    return "Killed, perhaps for want of memory, or MPI could not start"
