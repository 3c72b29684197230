"""Files of a checkpoint that several ranks write into its hidden folder, which rank 0 publishes.

Rank 0 learns their hashes by messages, or, where threads write beside training, which is none of
their business, by notes in the folder.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from phalanx.checkpoints.contents import CheckpointFile, write_files
from phalanx.checkpoints.folder import hidden_new, sync
from phalanx.checkpoints.gathering import gather_objects
from phalanx.checkpoints.manifest import StoredFile
from phalanx.comm.group import Group
from phalanx.errors import UserError

PATIENCE_S = 300.0
"""Seconds in which ranks that write a checkpoint have to write something."""
_POLL_S = 0.05
_NOTE = ".written-"
_MAX_NAMED = 8

Stored = Mapping[str, StoredFile]


class WrittenByOthers(Protocol):
    """Ranks that write files of a checkpoint beside rank 0."""

    def tell(self, new: Path, rank: int, stored: Stored) -> None:
        """Report, as another rank, what it has written into the hidden folder `new`."""

    def stored(self, new: Path) -> Stored:
        """Return on rank 0 what the others have written, once all have."""


class Gathered:
    """Ranks that wait for each other. Methods are collective: each rank calls one of them."""

    def __init__(self, group: Group | None) -> None:
        self._group = group

    def tell(self, new: Path, rank: int, stored: Stored) -> None:  # noqa: ARG002
        gather_objects(self._group, stored)

    def stored(self, new: Path) -> Stored:  # noqa: ARG002
        rows = gather_objects(self._group, dict[str, StoredFile]())
        return {name: file for row in rows for name, file in row.items()}


class Notes:
    """Threads of ranks that train meanwhile: each leaves a note in the folder."""

    def __init__(self, writers: Collection[int]) -> None:
        """writers: ranks that write, rank 0 among them."""
        self._writers = set(writers) - {0}

    def tell(self, new: Path, rank: int, stored: Stored) -> None:
        note, unfinished = new / f"{_NOTE}{rank}", new / f"{_NOTE}{rank}-unfinished"
        unfinished.write_bytes(msgspec.json.encode(stored))
        unfinished.rename(note)

    def stored(self, new: Path) -> Stored:
        """Wait for the notes, and take them away.

        Raises: UserError naming the ranks that wrote nothing for `PATIENCE_S`.
        """
        missing, found = set(self._writers), dict[str, StoredFile]()
        seen, until = 0, time.monotonic() + PATIENCE_S
        while missing:
            for rank in sorted(missing):
                note = new / f"{_NOTE}{rank}"
                if note.exists():
                    found |= msgspec.json.decode(note.read_bytes(), type=dict[str, StoredFile])
                    note.unlink()
                    missing.remove(rank)
            size = sum(path.stat().st_size for path in new.glob("[!.]*"))
            if size + len(found) > seen:
                seen, until = size + len(found), time.monotonic() + PATIENCE_S
            if missing and time.monotonic() > until:
                named = ", ".join(map(str, sorted(missing)[:_MAX_NAMED]))
                more = f" and {len(missing) - _MAX_NAMED} more" * (len(missing) > _MAX_NAMED)
                raise UserError(
                    f"checkpoint {new} was not finished: rank{'s' * (len(missing) > 1)} {named}"
                    f"{more} wrote nothing for {PATIENCE_S:g} s: look at the file system of its "
                    "folder, then resume"
                )
            if missing:
                time.sleep(_POLL_S)
        return found


def write_part(
    files: Sequence[CheckpointFile], *, target: Path, rank: int, others: WrittenByOthers
) -> None:
    """Write this rank's files of the checkpoint `target` into its hidden folder, and report them.

    rank: this one, not the first. Raises: UserError when they cannot be written.
    """
    new = hidden_new(target)
    with named_checkpoint(target):
        stored = write_files(files, new)
        for name in stored:
            sync(new / name)
        others.tell(new, rank, stored)


@contextmanager
def named_checkpoint(target: Path) -> Iterator[None]:
    """Raise UserError, naming the checkpoint, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"checkpoint {target} could not be written: {error.strerror or error}; earlier "
            "checkpoints are as they were: mend that (a full disk: free some space), then resume"
        ) from error
