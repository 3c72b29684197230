"""When a run writes checkpoints, and which of them it keeps."""

from __future__ import annotations

import math
import socket
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from phalanx import __version__
from phalanx.data.sources.source import Source
from phalanx.errors import UserError
from phalanx.models.options import completed
from phalanx.parallel.run_group import RunGroup
from phalanx.parallel.strategy import Strategy
from phalanx.records.files import EventWriter
from phalanx.records.schema import SavedEvent
from phalanx.train.checkpoint import load_checkpoint, save_checkpoint
from phalanx.train.checkpoint_folder import lock, remove
from phalanx.train.config import TrainConfig
from phalanx.train.manifest import Manifest, Value, folder_name, read_manifest
from phalanx.train.rank_state import gather_rank_state, load_rank_state
from phalanx.train.recipe import differences, recipe_of, restarts_schedule

MAX_WITHIN_EPOCH = 2
"""Checkpoints within epochs that are kept: the newest, and one to resume from should it be damaged.
Those of full epochs all stay."""

MAX_NAMED_RANKS = 8
"""Ranks that an error lists."""


@dataclass(kw_only=True)
class CheckpointWriter:
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
        """Write the checkpoint of a finished epoch. Ranks that rank 0 does not need wait for it at
        the barrier with which the next epoch begins."""
        self._save(epoch, self._manifest(epoch + 1, 0))

    def within_epoch(self, epoch: int, samples_seen: int) -> None:
        """samples_seen: of `epoch`, by all ranks together."""
        path = self._save(epoch, self._manifest(epoch, samples_seen))
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

    def _save(self, epoch: int, manifest: Manifest) -> Path | None:
        """Write the checkpoint; return its path on rank 0."""
        began, strategy = time.perf_counter(), self.strategy
        if strategy.is_sharded:
            from phalanx.train.sharded import save_sharded  # imports DTensor, which takes seconds

            path = save_sharded(self.folder, strategy, manifest, self.shapes)
        else:
            kept = gather_rank_state(strategy)
            if strategy.rank == 0:
                parts = (strategy.model, strategy.optimizer)
                path = save_checkpoint(self.folder, *parts, manifest, also=kept)
        if strategy.rank > 0:
            return None
        now = time.perf_counter()
        num_bytes = sum(file.stat().st_size for file in path.iterdir())
        self.writer.add(
            SavedEvent(
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


def starting_point(config: TrainConfig, group: RunGroup) -> StartingPoint:
    """Read it from the manifest of `config.resume`. A run keeps its id while its recipe stays.
    Collective.

    Raises: UserError when this rank cannot read it, or ranks see different checkpoints.
    """
    manifest = agreed_manifest(config.resume, group)
    run = uuid.uuid4().hex
    if manifest is None:
        return StartingPoint(run=run)
    if restarts_schedule(manifest, config):
        return StartingPoint(run=run, position=manifest.position, schedule_start=manifest.position)
    return StartingPoint(
        run=run if differences(manifest, config) else manifest.run,
        position=manifest.position,
        schedule_start=manifest.schedule_start,
    )


def agreed_manifest(checkpoint: Path | None, group: RunGroup) -> Manifest | None:
    """Read the manifest of the checkpoint that all ranks resume from. Collective.

    Under a launcher each rank looks for the newest one itself, on the disk that it sees.
    Raises: UserError when this rank cannot read it; on every rank, when they see different ones.
    """
    manifest = None if checkpoint is None else _read_here(checkpoint, group)
    sha256, position = (manifest.sha256, manifest.position) if manifest else ("", (0, 0))
    rows = group.gather([*position, float(group.share(sha256) != sha256)])
    problem = group.share(_other_checkpoints(checkpoint, rows) if rows is not None else "")
    if problem:
        raise UserError(problem)
    return manifest


def _read_here(checkpoint: Path, group: RunGroup) -> Manifest:
    try:
        return read_manifest(checkpoint)
    except UserError as error:
        if group.node == 0:
            raise
        raise UserError(
            f"{error}, on {socket.gethostname()}: every node must see it: name a folder that all "
            "share, or copy the checkpoint to the same path"
        ) from error


def _other_checkpoints(checkpoint: Path | None, rows: list[list[float]]) -> str:
    """Name the ranks that see another checkpoint than rank 0; empty: there are none.

    rows: epochs done, samples seen, and whether it is another one, of every rank.
    """
    ranks: dict[str, list[str]] = {}
    for rank, (epochs, samples, is_another) in enumerate(rows):
        if is_another:
            name = folder_name(int(epochs), int(samples)) if epochs or samples else "none"
            ranks.setdefault(name, []).append(str(rank))
    if not ranks:
        return ""
    others = "; ".join(
        f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers[:MAX_NAMED_RANKS])}"
        f"{', …' * (len(numbers) > MAX_NAMED_RANKS)}: "
        f"{f'another {name}' if checkpoint and checkpoint.name == name else name}"
        for name, numbers in ranks.items()
    )
    return (
        f"--resume: ranks see different checkpoints (rank 0: {checkpoint or 'none'}; {others}): "
        "name a folder that all nodes share, or copy the newest checkpoint to all of them"
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
    return manifest, list(filter(None, [load_rank_state(checkpoint, manifest, strategy)]))
