"""Writing of a run's checkpoints, and removal of those within epochs that are no longer needed."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from phalanx.checkpoints.checkpoint import save_checkpoint
from phalanx.checkpoints.folder import COMMAND_LINE, OptionNames, lock, remove
from phalanx.checkpoints.load import check_written_folder
from phalanx.checkpoints.manifest import Manifest, read_manifest
from phalanx.checkpoints.rank_state import Write, gather_rank_state
from phalanx.comm.shared_folder import named_host
from phalanx.errors import UserError
from phalanx.launch.detect import detect
from phalanx.parallel.strategy import Strategy
from phalanx.records.files import EventWriter
from phalanx.records.schema import SavedEvent

MAX_WITHIN_EPOCH = 2
"""Checkpoints within epochs that are kept: the newest, and one to resume from should it be damaged.
Those of full epochs all stay."""


@dataclass(kw_only=True)
class CheckpointWriter:
    """One rank's part in writing checkpoints; collective."""

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
    also: Write | None = None
    """Writes further files of rank 0 into the folder of a checkpoint."""
    _lock: IO[bytes] | None = None

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
            self.close()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def after_epoch(self, epoch: int) -> None:
        """Write the checkpoint of a finished epoch. Ranks that rank 0 does not need wait for it at
        the barrier with which the next epoch begins."""
        self._save(epoch, (epoch + 1, 0))

    def within_epoch(self, epoch: int, samples_seen: int) -> None:
        """samples_seen: of `epoch`, by all ranks together."""
        path = self._save(epoch, (epoch, samples_seen))
        self.strategy.group.barrier()  # so that the wait is no part of a step
        if path is not None:
            self._remove_older(path)

    def _remove_older(self, newest: Path) -> None:
        """Remove checkpoints within epochs, whoever wrote them: the folder is this run's.

        newest: just written; it stays, whatever a clock that was set back says.
        """
        saved = {}
        for path in self.folder.glob("epoch-*-samples-*"):
            try:
                saved[path] = read_manifest(path).saved_at
            except UserError:
                saved[path] = 0.0  # of no use to anybody
        saved[newest] = math.inf
        for path in sorted(saved, key=lambda path: saved[path])[:-MAX_WITHIN_EPOCH]:
            remove(path)

    def _save(self, epoch: int, position: tuple[int, int]) -> Path | None:
        """Write the checkpoint; return its path on rank 0."""
        began = time.perf_counter()
        if self.writer is not None:
            self.writer.flush()  # a run that goes on from here has records of all before
        with named_host(detect(os.environ)):
            path = self._write(position)
        if path is not None:
            self._record(epoch, path, time.perf_counter() - began)
        return path

    def _write(self, position: tuple[int, int]) -> Path | None:
        strategy = self.strategy
        manifest = msgspec.structs.replace(
            self.manifest,
            epochs_done=position[0],
            samples_seen=position[1],
            saved_at=time.time(),
        )
        if strategy.is_sharded:
            # It imports DTensor, which takes seconds.
            from phalanx.checkpoints.sharded import save_sharded

            path = save_sharded(
                self.folder, strategy, manifest, self.shapes, also=self.also, names=self.names
            )
        else:
            further = [write for write in (gather_rank_state(strategy), self.also) if write]
            if strategy.rank == 0:
                if self._lock is None and strategy.group.lost:  # that of another rank 0
                    self._lock = lock(self.folder, self.names)
                parts = (strategy.model, strategy.optimizer)
                path = save_checkpoint(
                    self.folder, *parts, manifest, also=further, names=self.names
                )
        return path if strategy.rank == 0 else None

    def _record(self, epoch: int, path: Path, save_s: float) -> None:
        if self.writer is None:
            return
        num_bytes = sum(file.stat().st_size for file in path.iterdir())
        at_s = time.perf_counter() - self.began_at
        event = SavedEvent(at_s=at_s, epoch=epoch, path=str(path), save_s=save_s, bytes=num_bytes)
        self.writer.add(event)
        self.writer.flush()
