"""Choice and check of the checkpoint to resume from: the newest complete one, of the same recipe.

No torch, no MPI: all of it is decided before anything is started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from phalanx.errors import UserError
from phalanx.models.options import completed
from phalanx.train.checkpoint_folder import readable_folders
from phalanx.train.config import TrainConfig
from phalanx.train.manifest import (
    MANIFEST,
    Manifest,
    position_of,
    read_manifest,
    verify,
)
from phalanx.train.recipe import SCHEDULE, differences, restarts_schedule

WITHIN_EPOCH = ("seed", "dataset", "data", "train_samples", "shuffle_shards", "damaged")
"""What decides which samples are left of an epoch."""


class RunIsFinishedError(UserError):
    """The checkpoint has all the epochs that were asked for: there is nothing to do."""

    def __init__(self, message: str, checkpoint: Path) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


@dataclass(frozen=True, kw_only=True)
class FoundCheckpoint:
    """A complete checkpoint."""

    path: Path
    manifest: Manifest
    skipped: tuple[str, ...] = ()
    """Newer ones that are not complete, and why: a line each."""


def find_checkpoint(path: Path) -> FoundCheckpoint:
    """Return `path` when it is a checkpoint, else the newest complete one in the folder `path`.

    Newest: of the run that saved last, the one that has seen most samples. Cost: its files are
    read.
    Raises: UserError when there is none, or `path` is a checkpoint that is damaged.
    """
    if (path / MANIFEST).is_file():
        return FoundCheckpoint(path=path, manifest=verify(path))
    if not path.is_dir():
        raise UserError(f"--resume {path}: there is no such folder")
    manifests, problems = _read_manifests(path)
    if not manifests and not problems:
        raise UserError(f"--resume {path}: no checkpoint (epoch-*/{MANIFEST}) in this folder")
    for checkpoint, manifest in _newest_first(manifests):
        try:
            verify(checkpoint)
        except UserError as error:
            problems[checkpoint] = str(error)
            continue
        newer = [p for p in problems if position_of(p.name) > manifest.position]
        notices = tuple(f"passed over: {problems[p].split('; ')[0]}" for p in newer)
        return FoundCheckpoint(path=checkpoint, manifest=manifest, skipped=notices)
    newest = max(problems, key=lambda checkpoint: position_of(checkpoint.name))
    raise UserError(f"--resume {path}: no complete checkpoint in it: {problems[newest]}")


def _read_manifests(folder: Path) -> tuple[dict[Path, Manifest], dict[Path, str]]:
    """Return the readable manifests, and the problem of each other checkpoint."""
    manifests, problems = {}, {}
    for checkpoint in readable_folders(folder):
        try:
            manifests[checkpoint] = read_manifest(checkpoint)
        except UserError as error:
            problems[checkpoint] = str(error)
    return manifests, problems


def _newest_first(manifests: Mapping[Path, Manifest]) -> list[tuple[Path, Manifest]]:
    """Return the checkpoints of the run that saved last, newest first."""
    if not manifests:
        return []
    run = max(manifests.values(), key=lambda manifest: manifest.saved_at).run
    of_run = [(path, manifest) for path, manifest in manifests.items() if manifest.run == run]
    return sorted(of_run, key=lambda one: (one[1].position, one[1].saved_at), reverse=True)


def check_resumable(found: FoundCheckpoint, config: TrainConfig) -> bool:
    """Return whether the run resumes by the very recipe of the checkpoint.

    config: complete.
    Raises: UserError when the checkpoint is of another model, or of other data or another recipe
            and the options do not allow it; RunIsFinishedError when no epoch is left to do.
    """
    manifest, path = found.manifest, found.path
    _check_model(manifest, path, config)
    differing = differences(manifest, config)
    if manifest.samples_seen:
        _check_epoch(differing, path)
    if not config.allow_changes:
        allowed = SCHEDULE if config.restart_schedule else ()
        _refuse({name: words for name, words in differing.items() if name not in allowed}, found)
    restarts = restarts_schedule(manifest, config)
    if manifest.epochs_done >= config.epochs:
        _raise_finished(found, config, is_changed=restarts or bool(differing))
    left = config.epochs - manifest.epochs_done
    if restarts and config.warmup_epochs >= left:
        raise UserError(
            f"--warmup-epochs {config.warmup_epochs:g} is all of the {left} epochs that "
            "--restart-schedule leaves: warm up for less"
        )
    return not differing and not restarts


def _check_model(manifest: Manifest, path: Path, config: TrainConfig) -> None:
    options = vars(completed(config.model, config.model_options))
    pairs: dict[str, tuple[object, object]] = {
        "model": (manifest.model, config.model),
        "dtype": (manifest.dtype, config.dtype),
        "optimizer": (manifest.optimizer, config.optimizer),
        **{name: (value, options.get(name)) for name, value in manifest.options.items()},
    }
    for name, (has, wanted) in pairs.items():
        if has != wanted:
            raise UserError(
                f"checkpoint {path} is of {name} {has}, this run wants {wanted}: "
                f"use --{name} {has} or another checkpoint"
            )


def _check_epoch(differing: Mapping[str, str], path: Path) -> None:
    """Raise UserError where the samples left of an epoch cannot be known."""
    named = [differing[name] for name in WITHIN_EPOCH if name in differing]
    if named:
        raise UserError(
            f"checkpoint {path} is within an epoch, of which other samples would be left: "
            f"{'; '.join(named)}\ngive what it had, or resume from a checkpoint of a whole epoch"
        )


def _refuse(differing: Mapping[str, str], found: FoundCheckpoint) -> None:
    if not differing:
        return
    differs = f"checkpoint {found.path} is of another recipe: {'; '.join(differing.values())}"
    if all(name in SCHEDULE for name in differing):
        raise UserError(
            f"{differs}\ngive what it had; or --restart-schedule, for a schedule of the rate that "
            "begins anew over the epochs that are left"
        )
    raise UserError(f"{differs}\ngive what it had, or --allow-changes to go on in spite of it")


def _raise_finished(found: FoundCheckpoint, config: TrainConfig, *, is_changed: bool) -> NoReturn:
    """is_changed: the run that has these epochs is another than the one that is asked for."""
    done = f"checkpoint {found.path} has done {found.manifest.epochs_done} epochs"
    if is_changed and (config.restart_schedule or config.allow_changes):
        raise UserError(f"{done}, --epochs {config.epochs} leaves none to do: raise --epochs")
    raise RunIsFinishedError(
        f"{done}, all that --epochs {config.epochs} asks for: the run is finished, nothing is left",
        found.path,
    )


def check_checkpoint_dir(folder: Path, resumed: FoundCheckpoint | None) -> None:
    """Raise UserError when `folder` holds checkpoints of another run than the one that resumes, or
    cannot be written."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"--checkpoint-dir {folder}: {existing} is no folder that you may write to")
    manifests, problems = _read_manifests(folder)
    if not manifests and not problems:
        return
    newest = max((*manifests, *problems), key=lambda checkpoint: position_of(checkpoint.name))
    if resumed is None:
        raise UserError(
            f"--checkpoint-dir {folder} holds the checkpoints of a run, up to {newest.name}: "
            f"go on from them by --resume {folder}, or name another folder"
        )
    if manifests and all(m.run != resumed.manifest.run for m in manifests.values()):
        raise UserError(
            f"--checkpoint-dir {folder} holds the checkpoints of another run than {resumed.path}: "
            "name another folder"
        )


def check_order(manifest: Manifest, checkpoint: Path, order: str) -> None:
    """Raise UserError when the checkpoint is within an epoch of other samples, or of the same in
    another order: which samples are left of it cannot be known."""
    if manifest.samples_seen and manifest.order != order:
        raise UserError(
            f"checkpoint {checkpoint} is within an epoch of {manifest.order}, this run's epochs "
            f"are of {order}: take the same options, or a checkpoint of a whole epoch"
        )
