"""When a run writes checkpoints, and which it keeps."""

from __future__ import annotations

import socket
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from phalanx import __version__
from phalanx.data.source import Source
from phalanx.errors import UserError
from phalanx.models.options import completed
from phalanx.parallel.strategy import Strategy
from phalanx.records.files import EventWriter
from phalanx.records.schema import Saved
from phalanx.train.checkpoint import load_checkpoint, save_checkpoint
from phalanx.train.checkpoint_folder import lock, remove
from phalanx.train.config import TrainConfig
from phalanx.train.kept import load_kept, send_kept
from phalanx.train.manifest import Manifest, Value, read_manifest
from phalanx.train.recipe import differences, recipe_of

MOST_WITHIN = 2
"""Checkpoints within epochs that are kept: the newest, and one to go on from should it be damaged.
Those of whole epochs all stay."""


@dataclass(kw_only=True)
class Saver:
    """One rank's part in writing checkpoints; collective."""

    config: TrainConfig
    folder: Path
    strategy: Strategy
    writer: EventWriter
    began_at: float
    """`time.perf_counter()` that events count from."""
    source: Source
    start: StartingPoint
    shapes: dict[str, tuple[int, ...]]
    """Of the full model's tensors."""
    _recipe: dict[str, Value] = field(default_factory=dict)
    _lock: IO[bytes] | None = None

    def begin(self) -> None:
        """Lock the folder, and sweep what killed runs left there.

        Raises: UserError on rank 0 when another run has it, or it cannot be written.
        """
        self._recipe = recipe_of(self.config)
        if self.strategy.rank == 0:
            self._lock = lock(self.folder)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def after_epoch(self, epoch: int) -> None:
        """Ranks that rank 0 does not need wait for it at the barrier with which the next begins."""
        self._save(epoch, self._manifest(epoch + 1, 0))

    def within_epoch(self, epoch: int, samples_seen: int) -> None:
        """samples_seen: of `epoch`, by all ranks together."""
        path = self._save(epoch, self._manifest(epoch, samples_seen))
        self.strategy.barrier()  # so that the wait is no part of a step
        if path is not None:
            self._remove_older()

    def _remove_older(self) -> None:
        """Within epochs, whoever wrote them: the folder is this run's."""
        saved = {}
        for path in self.folder.glob("epoch-*-samples-*"):
            try:
                saved[path] = read_manifest(path).saved_at
            except UserError:
                saved[path] = 0.0  # of no use to anybody
        for path in sorted(saved, key=lambda path: saved[path])[:-MOST_WITHIN]:
            remove(path)

    def _save(self, epoch: int, manifest: Manifest) -> Path | None:
        """The checkpoint, on rank 0."""
        began, strategy = time.perf_counter(), self.strategy
        if strategy.is_sharded:
            from phalanx.train.sharded import save_sharded  # imports DTensor, which takes seconds

            path = save_sharded(self.folder, strategy, manifest, self.shapes)
        else:
            kept = send_kept(strategy)
            if strategy.rank == 0:
                parts = (strategy.model, strategy.optimizer)
                path = save_checkpoint(self.folder, *parts, manifest, also=kept)
        if strategy.rank > 0:
            return None
        now = time.perf_counter()
        num_bytes = sum(file.stat().st_size for file in path.iterdir())
        self.writer.add(
            Saved(
                at_s=now - self.began_at,
                epoch=epoch,
                path=str(path),
                save_s=now - began,
                bytes=num_bytes,
            )
        )
        self.writer.flush()
        return path

    def _manifest(self, epochs_done: int, samples_seen: int) -> Manifest:
        config = self.config
        options = completed(config.model, config.model_options)
        return Manifest(
            phalanx=__version__,
            model=config.model,
            dtype=config.dtype,
            optimizer=config.optimizer,
            dataset=self.source.name,
            seed=config.seed,
            global_batch_size=config.global_batch_size(self.strategy.size),
            epochs_done=epochs_done,
            samples_seen=samples_seen,
            train_samples=self.source.num_train,
            order=self.source.order,
            options={name: value for name, value in vars(options).items() if value is not None},
            run=self.start.run,
            recipe=self._recipe,
            schedule_start=self.start.schedule_start,
        )


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """Where a run begins: at its first step, or where a checkpoint was written."""

    run: str
    position: tuple[int, int] = (0, 0)
    """Epochs done, samples seen of the next."""
    schedule_start: tuple[int, int] = (0, 0)


def starting_point(config: TrainConfig, strategy: Strategy) -> StartingPoint:
    """Read it from the manifest of `config.resume`. A run keeps its id while its recipe stays.

    Raises: UserError when this rank cannot read it.
    """
    run = uuid.uuid4().hex
    if config.resume is None:
        return StartingPoint(run=run)
    try:
        manifest = read_manifest(config.resume)
    except UserError as error:
        if strategy.node == 0:
            raise
        raise UserError(
            f"{error}, on {socket.gethostname()}: every node must see it: name a folder that all "
            "share, or copy the checkpoint to the same path"
        ) from error
    if config.restart_schedule:
        return StartingPoint(run=run, position=manifest.position, schedule_start=manifest.position)
    return StartingPoint(
        run=run if differences(manifest, config) else manifest.run,
        position=manifest.position,
        schedule_start=manifest.schedule_start,
    )


def load(checkpoint: Path, strategy: Strategy) -> tuple[Manifest, list[str]]:
    """Load what any strategy has saved, and return lines for the user on what did not fit.
    Collective.

    Raises: UserError when a file is damaged or the tensors are not those of the model.
    """
    if strategy.is_sharded:
        from phalanx.train.sharded import load_sharded

        manifest = load_sharded(checkpoint, strategy)
    else:
        parts = (strategy.model, strategy.optimizer)
        manifest = load_checkpoint(checkpoint, *parts, strategy.rank)
    return manifest, list(filter(None, [load_kept(checkpoint, manifest, strategy)]))
