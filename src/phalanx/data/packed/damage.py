"""Errors for samples that were altered or truncated since they were packed."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from phalanx.errors import UserError

WHAT_TO_DO = "pack it again, or go on without such samples with --damaged skip"


class DamagedError(UserError):
    """A sample that was altered since it was packed, or cut off; `file` and `offset_bytes` say
    where it should have been, `sample` is its number in the pack."""

    def __init__(self, fault: str, *, file: Path, sample: int, offset_bytes: int) -> None:
        super().__init__(
            f"{file} is damaged: sample {sample} at byte {offset_bytes} {fault}\n{WHAT_TO_DO}"
        )
        self.fault, self.file, self.sample, self.offset_bytes = fault, file, sample, offset_bytes

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling: reader processes send it to their parent."""
        again = partial(
            DamagedError, file=self.file, sample=self.sample, offset_bytes=self.offset_bytes
        )
        return again, (self.fault,)


def describe_outcome(outcome: int) -> str:
    """Describe the outcome of reading a span; see checked_reads.py for the codes."""
    if outcome < 0:
        return f"cannot be read: {os.strerror(-outcome)}"
    return "lies beyond the file's end" if outcome == 1 else "is not what was packed"
