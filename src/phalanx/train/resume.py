"""Choice of the checkpoint that a run resumes from: of the same recipe, with epochs left to do.

No torch, no MPI: all of it is decided before anything is started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from phalanx.checkpoints.find import (
    FoundCheckpoint,
    check_checkpoint_dir,
    find_checkpoint,
    find_newest,
)
from phalanx.checkpoints.folder import check_unlocked, readable_folders
from phalanx.checkpoints.manifest import PROGRAM_FILE, TRAINER, Manifest
from phalanx.errors import UserError
from phalanx.models.options import completed, is_own_model
from phalanx.train.config import TrainConfig
from phalanx.train.recipe import SCHEDULE, differences, recipe_of, restarts_schedule
from phalanx.train.training_options import AUTOMATIC

WITHIN_EPOCH = ("seed", "dataset", "data", "train_samples", "shuffle_shards", "damaged")
"""Options that decide which samples are left of an epoch."""

RESUMING = "resuming from "
SCHEDULE_START = "schedule_start"
"""Key in a run's state: epoch, and samples of it, from which the schedule counts."""


class RunIsFinishedError(UserError):
    """The checkpoint has all the epochs that were asked for: there is nothing to do."""

    def __init__(self, message: str, checkpoint: Path) -> None:
        super().__init__(message)
        self.checkpoint = checkpoint


def resumed(config: TrainConfig, *, is_restart: bool) -> tuple[TrainConfig, list[str]]:
    """Replace `--resume` by the checkpoint itself, and return lines for the user on it.

    is_restart: as `phalanx.train.run.complete` takes it.
    Raises: UserError as `check_resumable`, and where another run has the folder.
    """
    messages: list[str] = []
    found: FoundCheckpoint | None = None
    folder, is_automatic = config.resume, config.resume == AUTOMATIC
    if config.checkpoint_dir:
        check_unlocked(config.checkpoint_dir)
    if is_automatic:
        folder = config.checkpoint_dir
        assert folder is not None, "by the rules of the options"
        found, messages = find_newest(folder)
    elif folder and (folder != config.checkpoint_dir or readable_folders(folder)):
        found = find_checkpoint(folder)
        messages = [*found.skipped]
    if folder and found is None:
        messages += [f"no checkpoint in {folder} yet: training from the start"]
        config = replace(config, resume=None, restart_schedule=False, allow_changes=False)
    if found is not None:
        try:
            changed = "" if check_resumable(found, config) else ", with changed options"
        except RunIsFinishedError:
            if not is_restart:
                raise
            changed = ", which has all epochs"
        messages += [f"{RESUMING}{found.path}{changed}"]
        config = replace(config, resume=found.path)
    if config.checkpoint_dir:
        check_checkpoint_dir(config.checkpoint_dir, found, may_begin=is_automatic)
    return config, messages


def check_resumable(found: FoundCheckpoint, config: TrainConfig) -> bool:
    """Return whether the run resumes by the very recipe of the checkpoint.

    config: complete. The tensors of a user's model are compared when its ranks have made it.
    Raises: UserError when the checkpoint is of another model, or of other data or another recipe
            and the options do not allow it; RunIsFinishedError when no epoch is left to do.
    """
    manifest, path = found.manifest, found.path
    _check_model(manifest, path, config)
    differing = differences(manifest.program, config)
    if manifest.samples_seen:
        _check_epoch(differing, path)
    if not config.allow_changes:
        allowed = SCHEDULE if config.restart_schedule else ()
        _refuse({name: words for name, words in differing.items() if name not in allowed}, found)
    restarts = config.restart_schedule and restarts_schedule(
        config, manifest.program, _schedule_start(path)
    )
    if manifest.epochs_done >= config.epochs:
        _raise_finished(found, config, is_changed=restarts or bool(differing))
    left = config.epochs - manifest.epochs_done
    if restarts and config.warmup_epochs >= left:
        raise UserError(
            f"--warmup-epochs {config.warmup_epochs:g} is all of the {left} epochs that "
            "--restart-schedule leaves: warm up for less"
        )
    return not differing and not restarts


def _schedule_start(checkpoint: Path) -> Sequence[int]:
    """Return the position from which the schedule of the learning rate counts there."""
    try:
        state = json.loads((checkpoint / PROGRAM_FILE).read_text())["state"]
        return [int(part) for part in state[SCHEDULE_START]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(f"checkpoint {checkpoint}: {PROGRAM_FILE} is damaged: {error}") from error


def _check_model(manifest: Manifest, path: Path, config: TrainConfig) -> None:
    there, here = manifest.program, recipe_of(config)
    if there.get(TRAINER) != here[TRAINER]:
        raise UserError(
            f"checkpoint {path} was written by a program, for its model {manifest.model}: it is "
            "for phalanx.start(resume=) in that program"
        )
    names = ["model", "dtype", "optimizer", *vars(completed(config.model, config.model_options))]
    if is_own_model(config.model) and is_own_model(str(there["model"])):
        names.remove("model")
    for name in names:
        has, wanted = there.get(name), here.get(name)
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
            "add --restart-schedule to go on: the schedule of the rate begins anew over the epochs "
            f"that are left; or give what the run had\n{differs}"
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
