"""When a run writes checkpoints, and which it keeps."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from phalanx import __version__
from phalanx.models.options import completed
from phalanx.parallel.strategy import Strategy
from phalanx.records.files import EventWriter
from phalanx.records.schema import Saved
from phalanx.train.checkpoint import load_checkpoint, save_checkpoint
from phalanx.train.config import TrainConfig
from phalanx.train.kept import load_kept, write_kept
from phalanx.train.manifest import WHOLE_EPOCHS, Manifest
from phalanx.train.sharded import load_together, save_together

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
    dataset: str
    order: str
    """Of the samples of an epoch."""
    global_batch_size: int
    _within: list[Path] = field(default_factory=list)

    def after_epoch(self, epoch: int) -> None:
        """Ranks that rank 0 does not need wait for it at the barrier with which the next begins."""
        self._save(epoch, self._manifest(epoch + 1, 0))

    def within_epoch(self, epoch: int, samples_seen: int) -> None:
        """samples_seen: of `epoch`, by all ranks together."""
        path = self._save(epoch, self._manifest(epoch, samples_seen))
        self.strategy.barrier()  # so that the wait is no part of a step
        if path is None:
            return
        self._within.append(path)
        while len(self._within) > MOST_WITHIN:
            shutil.rmtree(self._within.pop(0), ignore_errors=True)

    def _save(self, epoch: int, manifest: Manifest) -> Path | None:
        """The checkpoint, on rank 0."""
        began, strategy = time.perf_counter(), self.strategy
        if strategy.is_sharded:
            path = save_together(self.folder, strategy, manifest)
        else:
            kept = write_kept(self.folder, strategy, manifest)
            if strategy.rank == 0:
                parts = (strategy.model, strategy.optimizer)
                path = save_checkpoint(self.folder, *parts, manifest, kept)
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
            schema=WHOLE_EPOCHS + (samples_seen > 0),
            phalanx=__version__,
            model=config.model,
            dtype=config.dtype,
            optimizer=config.optimizer,
            dataset=self.dataset,
            seed=config.seed,
            global_batch_size=self.global_batch_size,
            epochs_done=epochs_done,
            samples_seen=samples_seen,
            order=self.order,
            options={name: value for name, value in vars(options).items() if value is not None},
            files={},
        )


def load(checkpoint: Path, strategy: Strategy) -> tuple[Manifest, str]:
    """What any strategy has saved, into this one; and a line for the user on what did not fit, if
    anything. Collective.

    Raises: UserError when a file is damaged or the tensors are not those of the model.
    """
    if strategy.is_sharded:
        manifest = load_together(checkpoint, strategy)
    else:
        parts = (strategy.model, strategy.optimizer)
        manifest = load_checkpoint(checkpoint, *parts, strategy.rank)
    return manifest, load_kept(checkpoint, manifest, strategy)
