"""Writing of a run's checkpoints, by a thread while training continues, and removal of older
ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from phalanx.checkpoints.checkpoint import (
    Gathered,
    Notes,
    WrittenByOthers,
    check_written_folder,
    model_files,
    named_checkpoint,
    write_checkpoint,
    write_part,
)
from phalanx.checkpoints.find import Retention
from phalanx.checkpoints.folder import FolderLock, begin, lock
from phalanx.checkpoints.manifest import Manifest, folder_name
from phalanx.checkpoints.rank_state import gather_rank_state
from phalanx.checkpoints.tensor_file import CheckpointFile, SnapshotMemory, write_files
from phalanx.comm.shared_folder import named_host
from phalanx.jobs.detect import detect
from phalanx.jobs.restarts import is_restart
from phalanx.parallel.strategy import Strategy
from phalanx.records.events import SavedEvent
from phalanx.records.files import EventWriter

checkpoint_thread = partial(ThreadPoolExecutor, 1, "checkpoint")
"""Makes a thread that writes beside training; a program that ends lets it finish."""


def gather_files(
    strategy: Strategy,
    shapes: Mapping[str, tuple[int, ...]],
    also: Callable[[], Sequence[CheckpointFile]] | None,
    *,
    is_writer: bool,
    is_shared: bool = False,
) -> tuple[list[CheckpointFile], set[int]]:
    """Return the files of a checkpoint that this rank writes or copies, and its parts of those of
    others, in their order; and the ranks that write any. Collective, and so is what is done with
    them.

    shapes: of the full model's tensors. also: returns further files. is_writer: for rank 0, and any
    other that holds and copies the full state. is_shared: all ranks share the folder, and each may
    write files of its own.
    """
    files: list[CheckpointFile] = []
    writers = {0}
    if strategy.is_sharded:
        # It imports DTensor, which takes seconds.
        from phalanx.checkpoints.sharded import gather_sharded

        files, writers = gather_sharded(strategy, shapes, is_shared=is_shared)
    else:
        of_ranks = gather_rank_state(strategy, is_shared=is_shared)
        if is_shared and of_ranks:
            writers = set(range(strategy.size))
        files += model_files(strategy.model, strategy.optimizer) if is_writer else []
        files += of_ranks
    return [*files, *(also() if also is not None and is_writer else ())], writers


@dataclass(kw_only=True)
class StateWriter:
    """One rank's part in writing a run's state into a folder, where the ranks may have a thread
    that writes a copy of it beside training."""

    folder: Path
    strategy: Strategy
    manifest: Manifest
    """Manifest of the run; what is written has its own position and time."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the full model's tensors."""
    keep: int | None = None
    """Valid checkpoints to keep, the newest; None: all of full epochs, and two within them."""
    writer: EventWriter | None = None
    """Writer of this rank's records; None: there are none."""
    began_at: float = 0.0
    """`time.perf_counter()` that events count from."""
    _lock: FolderLock | None = None
    _memory: SnapshotMemory = field(default_factory=SnapshotMemory)
    _thread: ThreadPoolExecutor = field(default_factory=checkpoint_thread)
    _writing: Future[SavedEvent | None] | None = None

    def __post_init__(self) -> None:
        self._retention = Retention(self.folder, self.keep)

    @property
    def is_writing(self) -> bool:
        """Return whether the thread writes."""
        return self._writing is not None and not self._writing.done()

    def _write(
        self,
        files: Sequence[CheckpointFile],
        position: tuple[int, int],
        saved_at: float,
        others: WrittenByOthers | None = None,
    ) -> SavedEvent:
        """Write a checkpoint and remove those that are no longer kept; on any thread.

        position: epochs done, and samples seen of the next. saved_at: seconds since 1970. others:
        ranks that write files of it into the hidden folder, which is there.
        """
        began = time.perf_counter()
        epochs_done, seen = position
        manifest = msgspec.structs.replace(
            self.manifest, epochs_done=epochs_done, samples_seen=seen, saved_at=saved_at
        )
        path = write_checkpoint(self.folder, manifest, files, others)
        with named_checkpoint(path):  # may have been removed meanwhile
            num_bytes = sum(file.stat().st_size for file in path.iterdir())
        event = SavedEvent(
            at_s=began - self.began_at,
            epoch=epochs_done if seen else epochs_done - 1,
            path=str(path),
            save_s=0.0,
            bytes=num_bytes,
            written_s=time.perf_counter() - began,
        )
        self._retention.remove_older(path)
        return event

    def close(self) -> None:
        """Wait until the last checkpoint is written, and let other runs have the folder.

        Raises: UserError when it could not be written, and the run needs it.
        """
        try:
            self._take()
        finally:
            self._unlock()

    def _take(self) -> None:
        """Wait for the last checkpoint, and report on it."""
        raise NotImplementedError

    def _written(self) -> SavedEvent | None:
        """Wait for the checkpoint that the thread writes. Raises: what writing it has raised."""
        writing, self._writing = self._writing, None
        assert writing is not None, "it was begun"
        return writing.result()

    def _unlock(self) -> None:
        self._thread.shutdown()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@dataclass(kw_only=True)
class CheckpointWriter(StateWriter):
    """One rank's part in writing checkpoints; collective.

    With `in_background` ranks that write copy what they write, or gather it, while training is
    held, and a thread writes the copy. The next checkpoint waits until the last one is written.
    Where ranks may be lost there is no thread: its copy would be lost with rank 0, after the other
    ranks have continued.
    """

    also: Callable[[], Sequence[CheckpointFile]] | None = None
    """Returns further files of rank 0."""
    in_background: bool = False
    timeout_s: float = 0.0
    """Seconds that the ranks wait for each other."""
    _is_shared: bool = False
    """True if all ranks share the folder."""
    _held: tuple[float, float] = (0.0, 0.0)
    """Time at which training went on after the last checkpoint, and seconds it was held for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.in_background = self.in_background and self.strategy.numbers is None

    def begin(self) -> str:
        """Lock the folder, and sweep what killed runs left there. Collective.

        Returns: a line for the user where nodes do not share the folder, else an empty one.
        Raises: UserError on rank 0 when another run has it, or it cannot be written; on every rank
                when a node has newer checkpoints there than rank 0 sees.
        """
        if self.strategy.rank == 0:
            # A rank that was cut off keeps the folder until its own timeout, as the peers wait.
            self._lock = lock(self.folder, within_s=self.timeout_s - 1 if is_restart() else 0.0)
        try:
            notice, self._is_shared = check_written_folder(self.folder, self.strategy.group)
            return notice
        except BaseException:
            self._unlock()
            raise

    def poll(self) -> bool:
        """Record a checkpoint that has been written, and return whether one still is. Not
        collective. Raises: UserError when it could not be written."""
        if not self.is_writing:
            self._take()
            return False
        return True

    def save(self, position: tuple[int, int]) -> None:
        """Write a checkpoint, or have it written. Ranks that write none of it wait for it, so that
        the wait is no part of a step, and no rank continues without it should rank 0 be lost.

        position: epochs done, and samples seen of the next, by all ranks together.
        """
        self._save(position)
        self.strategy.group.barrier()

    def _save(self, position: tuple[int, int]) -> None:
        began = time.perf_counter()
        if self.writer is not None:
            self.writer.flush()  # a run that goes on from here has records of all before
        self._take()
        with named_host(detect(os.environ)), self.strategy.group.uncounted():
            written = self._write_or_submit(position)
        now = time.perf_counter()
        self._held = now - self.began_at, now - began
        if written is not None:
            self._record(written)

    def _write_or_submit(self, position: tuple[int, int]) -> SavedEvent | None:
        """Write this rank's files of a checkpoint, or have its thread write them; return the event
        of one that is written, on rank 0."""
        strategy, group = self.strategy, self.strategy.group
        is_first, target = strategy.rank == 0, self.folder / folder_name(*position)
        files, writers = gather_files(
            strategy, self.shapes, self.also, is_writer=is_first, is_shared=self._is_shared
        )
        if is_first and self._lock is None and group.lost:  # the lock belongs to a former rank 0
            self._lock = lock(self.folder)
        others: WrittenByOthers | None = None
        if writers != {0}:
            if is_first:
                with named_checkpoint(target):
                    begin(target)
            group.barrier()  # the folder is there
            others = Notes(writers) if self.in_background else Gathered(group.checkpoint_group())
        elif not is_first:
            write_files(files, target)  # slices of the files of rank 0
            return None
        work: Callable[[Sequence[CheckpointFile]], SavedEvent | None] = partial(
            self._write, position=position, saved_at=time.time(), others=others
        )
        if not is_first:
            assert others is not None
            work = partial(write_part, target=target, rank=strategy.rank, others=others)
        if not self.in_background:
            written = work(files)
            return None if written is None else msgspec.structs.replace(written, written_s=None)
        files = self._memory.copy(files)
        if strategy.rank in writers:
            self._writing = self._thread.submit(work, files)
        return None

    def _take(self) -> None:
        """Record the last checkpoint, once it is written."""
        if self._writing is not None:
            with named_host(detect(os.environ)):
                written = self._written()
            self._record(written)

    def _record(self, event: SavedEvent | None) -> None:
        if self.writer is not None and event is not None:
            at_s, save_s = self._held
            self.writer.add(msgspec.structs.replace(event, at_s=at_s, save_s=save_s))
            self.writer.flush()
