"""Checkpoints of `phalanx train`: the manifest of a configuration, and where a run begins."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import msgspec

from phalanx import __version__
from phalanx.checkpoints.load import agreed_manifest
from phalanx.checkpoints.manifest import Manifest
from phalanx.checkpoints.memory_copies import find_copy
from phalanx.data.sources.source import Source
from phalanx.models.options import completed, model_label
from phalanx.parallel.run_group import RunGroup
from phalanx.records.progress import position_of
from phalanx.train.config import TrainConfig
from phalanx.train.recipe import differences, recipe_of, restarts_schedule


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """Where a run begins: at its first step, or where a checkpoint was written."""

    run: str
    position: tuple[int, int] = (0, 0)
    """Epochs done, samples seen of the next."""
    schedule_start: tuple[int, int] = (0, 0)


def resumed_from_memory(config: TrainConfig, group: RunGroup) -> TrainConfig:
    """Return the configuration of a restart that resumes from a copy in the memory of a node, where
    one is newer than the checkpoint on the disk. Collective."""
    if config.checkpoint_dir is None:
        return config
    on_disk = (-1, 0) if config.resume is None else position_of(config.resume.name)
    copy = find_copy(config.checkpoint_dir, group, on_disk)
    if copy is None:
        return config
    if group.rank == 0:
        print(copy.text, flush=True)
    return replace(config, resume=copy.path)


def starting_point(config: TrainConfig, group: RunGroup) -> StartingPoint:
    """Return rank 0's starting point, by the manifest of `config.resume`. A run keeps its id while
    its recipe stays. Collective.

    Raises: UserError when this rank cannot read it, or ranks see different checkpoints.
    """
    manifest = agreed_manifest(config.resume, group)
    # The recipe names data, which other nodes may lack.
    start = _starting_point(config, manifest) if group.rank == 0 else StartingPoint(run="")
    text = group.share(msgspec.json.encode(start).decode())
    return msgspec.json.decode(text, type=StartingPoint)


def _starting_point(config: TrainConfig, manifest: Manifest | None) -> StartingPoint:
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


def manifest_of(
    config: TrainConfig, source: Source, start: StartingPoint, group: RunGroup
) -> Manifest:
    """Return the manifest of a run's checkpoints at its first step: rank 0's. Collective."""
    manifest = (
        _manifest(config, source, start, group.size - group.num_spares) if group.rank == 0 else None
    )
    text = group.share("" if manifest is None else msgspec.json.encode(manifest).decode())
    return msgspec.json.decode(text, type=Manifest)


def _manifest(config: TrainConfig, source: Source, start: StartingPoint, size: int) -> Manifest:
    options = completed(config.model, config.model_options)
    return Manifest(
        phalanx=__version__,
        model=model_label(config.model),
        dtype=config.dtype,
        optimizer=config.optimizer,
        dataset=source.name,
        seed=config.seed,
        global_batch_size=config.global_batch_size(size),
        epochs_done=0,
        train_samples=source.num_train,
        order=source.order,
        options={name: value for name, value in vars(options).items() if value is not None},
        run=start.run,
        recipe=recipe_of(config),
        schedule_start=start.schedule_start,
    )
