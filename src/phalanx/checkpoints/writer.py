"""Writing of a run's checkpoints, by a thread while training goes on, and removal of older ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.checkpoints.background import BackgroundWork
from phalanx.checkpoints.checkpoint import model_files, write_checkpoint
from phalanx.checkpoints.contents import CheckpointFile, SnapshotMemory
from phalanx.checkpoints.folder import COMMAND_LINE, FolderLock, OptionNames, lock
from phalanx.checkpoints.load import check_written_folder
from phalanx.checkpoints.manifest import Manifest
from phalanx.checkpoints.rank_state import gather_rank_state
from phalanx.checkpoints.retention import Retention
from phalanx.comm.shared_folder import named_host
from phalanx.jobs.detect import detect
from phalanx.parallel.strategy import Strategy
from phalanx.records.events import SavedEvent
from phalanx.records.files import EventWriter


class _Written(NamedTuple):
    """A checkpoint that is on the disk."""

    path: Path
    num_bytes: int
    seconds: float
    """Of writing."""


class _Held(NamedTuple):
    """A checkpoint that a thread writes, as its record begins."""

    epoch: int
    at_s: float
    seconds: float
    """For which training was held."""


def gather_files(
    strategy: Strategy,
    shapes: Mapping[str, tuple[int, ...]],
    also: Callable[[], Sequence[CheckpointFile]] | None,
    *,
    is_writer: bool,
) -> list[CheckpointFile]:
    """Return the files of a checkpoint on a rank that writes or copies them, in their order: rank
    0, and any other that holds the full state. Collective.

    shapes: of the full model's tensors. also: returns further files.
    """
    files: list[CheckpointFile] = []
    if strategy.is_sharded:
        # It imports DTensor, which takes seconds.
        from phalanx.checkpoints.sharded import gather_sharded

        files += gather_sharded(strategy, shapes)
    else:
        of_ranks = gather_rank_state(strategy)
        if is_writer:
            files += [*model_files(strategy.model, strategy.optimizer), *of_ranks]
    return [*files, *(also() if also is not None and is_writer else ())]


@dataclass(kw_only=True)
class CheckpointWriter:
    """One rank's part in writing checkpoints; collective.

    With `in_background` rank 0 copies what a checkpoint holds, or gathers it, while training is
    held, and a thread writes the copy. The next checkpoint waits until the last one is written.
    Where ranks may be lost there is no thread: its copy would be lost with rank 0, after the others
    have gone on.
    """

    folder: Path
    strategy: Strategy
    manifest: Manifest
    """Of the run; each checkpoint has its own position and time."""
    shapes: dict[str, tuple[int, ...]]
    """Of the full model's tensors."""
    writer: EventWriter | None = None
    """Of this rank's records; None: there are none."""
    began_at: float = 0.0
    """`time.perf_counter()` that events count from."""
    names: OptionNames = COMMAND_LINE
    also: Callable[[], Sequence[CheckpointFile]] | None = None
    """Returns further files of rank 0."""
    in_background: bool = False
    keep: int | None = None
    """Valid checkpoints to keep, the newest; None: all of full epochs, and two within them."""
    _lock: FolderLock | None = None
    _memory: SnapshotMemory = field(default_factory=SnapshotMemory)
    _work: BackgroundWork[_Written] = field(default_factory=BackgroundWork)
    _held: _Held | None = None

    def __post_init__(self) -> None:
        self._retention = Retention(self.folder, self.keep)
        self.in_background = self.in_background and self.strategy.numbers is None

    def begin(self) -> str:
        """Lock the folder, and sweep what killed runs left there. Collective.

        Returns: a line for the user where nodes do not share the folder, else an empty one.
        Raises: UserError on rank 0 when another run has it, or it cannot be written; on every rank
                when a node has newer checkpoints there than rank 0 sees.
        """
        if self.strategy.rank == 0:
            self._lock = lock(self.folder, self.names)
        try:
            return check_written_folder(self.folder, self.strategy.group)
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        """Wait until the last checkpoint is written, and let other runs have the folder.

        Raises: UserError when it could not be written.
        """
        try:
            self._take(wait=True)
        finally:
            self._unlock()

    def poll(self) -> bool:
        """Record a checkpoint that has been written, and return whether one still is. Not
        collective. Raises: UserError when it could not be written."""
        if self._held is None:
            return False
        if self._work.is_running:
            return True
        self._take(wait=False)
        return False

    def after_epoch(self, epoch: int) -> None:
        """Write the checkpoint of a finished epoch. Ranks that rank 0 does not need wait for it at
        the barrier with which the next epoch begins."""
        self._save(epoch, (epoch + 1, 0))

    def within_epoch(self, epoch: int, samples_seen: int) -> None:
        """samples_seen: of `epoch`, by all ranks together."""
        self._save(epoch, (epoch, samples_seen))
        self.strategy.group.barrier()  # so that the wait is no part of a step

    def _save(self, epoch: int, position: tuple[int, int]) -> None:
        """Write a checkpoint, or have it written."""
        began = time.perf_counter()
        if self.writer is not None:
            self.writer.flush()  # a run that goes on from here has records of all before
        self._take(wait=True)
        with named_host(detect(os.environ)), self.strategy.group.uncounted():
            is_writer = self.strategy.rank == 0
            files = gather_files(self.strategy, self.shapes, self.also, is_writer=is_writer)
            if not is_writer:
                return
            if self._lock is None and self.strategy.group.lost:  # that of another rank 0
                self._lock = lock(self.folder, self.names)
            manifest = msgspec.structs.replace(
                self.manifest,
                epochs_done=position[0],
                samples_seen=position[1],
                saved_at=time.time(),
            )
            if self.in_background:
                files = self._memory.copy(files)
                self._work.begin(lambda: self._write(manifest, files))
            else:
                written = self._write(manifest, files)
        now = time.perf_counter()
        self._held = _Held(epoch, now - self.began_at, now - began)
        if not self.in_background:
            self._record(written)

    def _write(self, manifest: Manifest, files: Sequence[CheckpointFile]) -> _Written:
        """Write a checkpoint and remove those that are no longer kept; on rank 0, on any thread."""
        began = time.perf_counter()
        path = write_checkpoint(self.folder, manifest, files, self.names)
        num_bytes = sum(file.stat().st_size for file in path.iterdir())
        seconds = time.perf_counter() - began
        self._retention.remove_older(path)
        return _Written(path, num_bytes, seconds)

    def _take(self, *, wait: bool) -> None:
        with named_host(detect(os.environ)):
            written = self._work.take(wait=wait)
        if written is not None:
            self._record(written)

    def _record(self, written: _Written) -> None:
        held, self._held = self._held, None
        if self.writer is None or held is None:
            return
        event = SavedEvent(
            at_s=held.at_s,
            epoch=held.epoch,
            path=str(written.path),
            save_s=held.seconds,
            bytes=written.num_bytes,
            written_s=written.seconds if self.in_background else None,
        )
        self.writer.add(event)
        self.writer.flush()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
