"""Options of a run of a user's program."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class ProgramConfig:
    """One way to run a program."""

    words: tuple[str, ...]
    """The program and its arguments."""
    strategy: str
    ranks: int
    threads: int
    seed: int
    epoch_pattern: str | None
    """Regular expression of the line that it prints after an epoch; None: it writes records."""

    def as_record(self) -> dict[str, object]:
        return asdict(self) | {"words": shlex.join(self.words)}
