"""Copies of a run's checkpoints in the memory of its nodes: written often, and read by the ranks of
a restart. They outlive the ranks; the process that owns the run removes them.

Every node has its own where each rank holds the full state; else that of rank 0 has the only one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from phalanx.checkpoints.find import FoundCheckpoint
from phalanx.checkpoints.folder import LOCK, FolderLock, readable_folders, replacing, sweep
from phalanx.checkpoints.manifest import MANIFEST, Manifest, read_manifest
from phalanx.checkpoints.tensor_file import CheckpointFile, SentParts, TextFile, write_files
from phalanx.checkpoints.writer import StateWriter, gather_files
from phalanx.comm.file_copies import send_files
from phalanx.comm.shared_folder import gather_text
from phalanx.errors import UserError
from phalanx.jobs.memory_copies import OPTION, CopySettings, copy_settings, valid_copies
from phalanx.jobs.node_copies import is_private, remove_abandoned
from phalanx.parallel.local import Local
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.records.events import NoticeEvent
from phalanx.records.regular_file import open_lock

SHARE_OF_FREE = 0.5
"""Largest share of the free memory for a copy: the ranks' own messages need some."""


def folder_for(settings: CopySettings, checkpoint_dir: Path) -> Path:
    """Return the folder of the copies of the checkpoints in `checkpoint_dir`: a program may train
    more than once."""
    return (
        settings.folder / hashlib.sha256(str(checkpoint_dir.absolute()).encode()).hexdigest()[:16]
    )


@dataclass(kw_only=True)
class MemoryCopies(StateWriter):
    """One rank's part in the copies of a run."""

    every_s: float
    keep: int | None = 1
    also: Callable[[int], Sequence[CheckpointFile]] | None = None
    """Returns further files, after so many updates."""
    _num_bytes: int = 0
    _has_told: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._saved_at = time.perf_counter()

    @classmethod
    def of(
        cls,
        checkpoint_dir: Path,
        strategy: Strategy,
        manifest: Manifest,
        shapes: Mapping[str, tuple[int, ...]],
        also: Callable[[int], Sequence[CheckpointFile]] | None = None,
    ) -> MemoryCopies | None:
        """Return this rank's part; None where the run keeps no copies.

        Raises: UserError for a strategy whose results they would change.
        """
        settings = copy_settings(os.environ)
        if settings is None:
            return None
        if isinstance(strategy, Local):
            raise UserError(
                f'{OPTION} and strategy="local" exclude each other: ranks average their updates '
                "before each copy, so copies by a clock would change the results; leave it out"
            )
        return cls(
            folder=folder_for(settings, checkpoint_dir),
            every_s=settings.every_s,
            strategy=strategy,
            manifest=manifest,
            shapes=shapes,
            also=also,
        )

    def is_due(self) -> bool:
        """Return whether rank 0 wants a copy now: time has passed, the last one is written, and
        there is room. Not collective."""
        is_time = time.perf_counter() >= self._saved_at + self.every_s
        return is_time and not self.is_writing and self._has_room()

    def save(self, position: tuple[int, int], step: int, saved_at: float) -> None:
        """Have this run's state copied where it stands. Collective.

        position: epochs done, and samples seen of the next. step: updates made. saved_at: time of
        the copy, of rank 0's clock: so that nodes have the same one.
        """
        self._saved_at = time.perf_counter()
        also = None if self.also is None else partial(self.also, step)
        is_writer = self.strategy.rank == 0 or self._can_write()
        with self.strategy.group.uncounted():
            files, _ = gather_files(self.strategy, self.shapes, also, is_writer=is_writer)
            if not is_writer:
                write_files(files, self.folder)  # slices of the files of rank 0
                return
            self._take()
            self._num_bytes = sum(map(_bytes_of, files))
            files = self._memory.copy(files)  # also receives what other ranks send
        if not self._has_room() or not self._take_folder():
            return
        self._writing = self._thread.submit(self._write, files, position, saved_at)

    def _can_write(self) -> bool:
        """Return whether this rank, not the first, has all of the state, and room for its node."""
        strategy = self.strategy
        has_all = not strategy.is_sharded and strategy.rank_local_state() is None
        is_idle = strategy.group.is_node_leader and not self.is_writing
        return has_all and is_idle and self._has_room() and self._take_folder()

    def _take_folder(self) -> bool:
        """Return whether the folder is this rank's to write to: made, locked, and without what a
        rank that was killed has left."""
        if self._lock is not None:
            return self.folder.is_dir()  # else the run has ended, and this rank was cut off
        try:
            _make(self.folder)
            file = open_lock(self.folder / LOCK)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False  # another rank of this machine writes
        except OSError as error:
            self._tell(f"{self.folder.parent}: {error.strerror or error}")
            return False
        self._lock = FolderLock(file)
        sweep(self.folder)
        return True

    def _has_room(self) -> bool:
        """Return whether a copy like the last one has room, and say once that there is none."""
        try:
            free = shutil.disk_usage(self.folder.parent.parent).free
        except OSError as error:
            self._tell(str(error))
            return False
        if self._num_bytes <= free * SHARE_OF_FREE:
            return True
        size, left = self._num_bytes / 1e6, free / 1e6
        self._tell(
            f"it needs {size:,.1f} MB, and {self.folder.parent.parent} has {left:,.1f} MB free, of "
            "which a copy may take at most half"
        )
        return False

    def _take(self) -> None:
        """Wait for the last copy, and report why it could not be written."""
        if self._writing is None:
            return
        try:
            self._written()
        except (UserError, OSError) as error:
            self._tell(str(error).partition("; ")[0])

    def _tell(self, why: str) -> None:
        """Report once that there is no copy."""
        if self._has_told:
            return
        self._has_told = True
        text = f"no copy of the checkpoint in the memory of {socket.gethostname()}: {why}"
        print(f"phalanx: {text}", file=sys.stderr, flush=True)
        if self.writer is not None:
            at_s = time.perf_counter() - self.began_at
            self.writer.add(NoticeEvent(at_s=at_s, text=text))


def _make(folder: Path) -> None:
    """Make the folder of a run's copies on this node. Raises: OSError."""
    if not folder.parent.exists():
        remove_abandoned()
    with suppress(FileExistsError):
        folder.parent.mkdir(mode=0o700)
    if not is_private(folder.parent):
        raise OSError("it belongs to another user, or other users may read it")
    folder.mkdir(mode=0o700, exist_ok=True)


def _bytes_of(file: CheckpointFile) -> int:
    if isinstance(file, TextFile):
        return len(file.text)
    return 0 if isinstance(file, SentParts) else sum(spec.num_bytes for spec in file.specs.values())


class _Copy(msgspec.Struct, frozen=True):
    """A copy that a rank sees; without a name: none."""

    host: str
    position: tuple[int, int] = (-1, 0)
    name: str = ""
    sha256: str = ""


def find_copy(
    checkpoint_dir: Path, group: RunGroup, further_than: tuple[int, int]
) -> tuple[FoundCheckpoint, str] | None:
    """Return the newest valid copy of the run's checkpoints, of whichever node has it, and words on
    it for the user; None where none is newer than what rank 0 has found on the disk. Collective.

    Rank 0's node gets one that it lacks, and all nodes lose the others.
    further_than: position of that on the disk, on rank 0.
    """
    settings, valid = copy_settings(os.environ), valid_copies(os.environ)
    if settings is None or not valid:
        return None
    folder = folder_for(settings, checkpoint_dir)
    own = _newest_here(folder, valid)
    rows = gather_text(group, msgspec.json.encode([own, further_than]).decode())
    seen = [msgspec.json.decode(row, type=tuple[_Copy, tuple[int, int]]) for row in rows]
    newest = max(copy.position for copy, _ in seen)
    if newest <= seen[0][1]:
        return None
    source = next(rank for rank, (copy, _) in enumerate(seen) if copy.position == newest)
    chosen = seen[source][0]
    path = folder / chosen.name
    if seen[0][0].sha256 != chosen.sha256 and (problem := _bring(path, group, source, chosen.host)):
        if group.rank == 0:
            print(f"phalanx: {problem}", file=sys.stderr, flush=True)
        return None
    if group.is_node_leader:
        for other in folder.glob("*epoch-*"):
            if other.name != path.name or _sha256_of(other) != chosen.sha256:
                shutil.rmtree(other, ignore_errors=True)
    group.barrier()  # nobody sees another one any more
    content = (path / MANIFEST).read_text() if group.rank == 0 else ""
    manifest = msgspec.json.decode(group.share(content), type=Manifest)
    text = f"resuming from the copy in the memory of {chosen.host}: {path.name}"
    return FoundCheckpoint(path=path, manifest=manifest), text


def _newest_here(folder: Path, valid: frozenset[str]) -> _Copy:
    """Return the newest valid copy that this rank sees."""
    found = _Copy(socket.gethostname())
    for path in readable_folders(folder) if is_private(folder.parent) else ():
        try:
            manifest = read_manifest(path)
        except UserError:
            continue
        if manifest.sha256 in valid and manifest.position > found.position:
            found = _Copy(found.host, manifest.position, path.name, manifest.sha256)
    return found


def _sha256_of(path: Path) -> str:
    try:
        return read_manifest(path).sha256
    except UserError:
        return ""


def _bring(path: Path, group: RunGroup, source: int, host: str) -> str:
    """Bring the copy of another rank's node, `host`, to rank 0's; return why it could not be.
    Collective."""
    files: dict[str, Path] = {}
    if group.rank == source:
        files = {name: path / name for name in (*read_manifest(path).files, MANIFEST)}
    problem = ""
    try:
        with ExitStack() as stack:
            into: Path | None = None
            if group.rank == 0:
                try:
                    _make(path.parent)
                    into = stack.enter_context(replacing(path))
                except OSError as error:
                    problem = f"{path.parent.parent}: {error.strerror or error}"
            if problem := group.share(problem):
                raise UserError(problem)
            send_files(_FromRank(group, source), files, into)
    except UserError as error:
        return f"skipped: the copy {path.name} in the memory of {host}: {error}"
    return ""


class _FromRank:
    """The ranks of a group, of which `source` and rank 0 have changed places."""

    def __init__(self, group: RunGroup, source: int) -> None:
        self._group, self._source = group, source
        self.size = group.size
        self.rank = {source: 0, 0: source}.get(group.rank, group.rank)

    def gather(self, values: Sequence[float]) -> list[list[float]] | None:
        """Return every rank's values, on the source."""
        rows = self._group.gather(values)
        every: list[list[float]] = json.loads(
            self._group.share("" if rows is None else json.dumps(rows))
        )
        every[0], every[self._source] = every[self._source], every[0]
        return every if self.rank == 0 else None

    def share(self, text: str) -> str:
        """Broadcast the source's text."""
        return gather_text(self._group, text if self.rank == 0 else "")[self._source]

    def broadcast(self, values: NDArray[np.uint8]) -> None:
        """Fill `values` with those of the source."""
        self._group.broadcast(values, root=self._source)
