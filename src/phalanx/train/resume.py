"""Choice of the checkpoint that a run resumes from: of the same recipe, with epochs left to do.

The recipe is every option that decides the numbers of a run. How the work is split over ranks, and
how gradients travel, is not part of it: a checkpoint goes on under any strategy and on any number
of ranks.

No torch, no MPI: all of it is decided before anything is started.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import NoReturn

from phalanx.checkpoints.find import (
    FoundCheckpoint,
    check_checkpoint_dir,
    find_checkpoint,
    find_newest,
)
from phalanx.checkpoints.folder import check_unlocked, readable_folders
from phalanx.checkpoints.manifest import PROGRAM_FILE, TRAINER, Manifest, Value, differing_values
from phalanx.errors import UserError
from phalanx.models.options import completed, is_own_model, model_label
from phalanx.models.user_function import FunctionName
from phalanx.parallel.option_groups import option
from phalanx.train.config import TrainConfig
from phalanx.train.options import AUTOMATIC, OptimizerOptions

SCHEDULE = (
    "epochs", "lr", "lr_rule", "lr_schedule", "lr_milestones", "lr_factor", "lr_power",
    "warmup_epochs", "warmup",
)  # fmt: skip
"""Options that decide the learning rate of a step."""

_OF_THE_DATA = ("train_samples", "shuffle_shards", "augment", "damaged")
_OTHERS = ("epochs", "autocast", "seed", "dtype")


def recipe_of(config: TrainConfig) -> dict[str, Value]:
    """Return the options by name, as plain values; `data` is the fingerprint of packed data.

    config: complete. `epochs` counts only where the learning rate depends on it.
    """
    fingerprint = ""
    if config.data is not None:
        from phalanx.data.sources.packed import describe  # imports NumPy

        fingerprint = describe(config.data).fingerprint
    learning = [field.name for field in fields(OptimizerOptions)]
    names = (*learning, *_OF_THE_DATA, *_OTHERS)
    loss = None if config.loss is None else FunctionName.parse("--loss", config.loss).label
    recipe = {name: _plain(getattr(config, name)) for name in names}
    if config.lr_schedule == "constant":
        del recipe["epochs"]
    number = config.bitwise_micro_batches()
    cut: dict[str, Value] = {} if number is None else {"bitwise": True, "micro_batches": number}
    sizes = vars(completed(config.model, config.model_options))
    return {
        TRAINER: "phalanx train",
        "model": model_label(config.model),
        **{name: value for name, value in sizes.items() if value is not None},
        "dataset": "" if fingerprint else config.data_name,  # else known by its content
        "global_batch_size": config.global_batch_size(),
        **recipe,
        "data": fingerprint,
        "loss": loss,
        **cut,
    }


def differences(there: Mapping[str, Value], config: TrainConfig) -> dict[str, str]:
    """Return by option what the checkpoint has and what this run wants, where that differs.

    there: of the checkpoint. config: complete.
    """
    here = recipe_of(config)
    differing = differing_values(there, here, _option)
    if "constant" in (there.get("lr_schedule"), here.get("lr_schedule")):
        differing.pop("epochs", None)
    return differing


def restarts_schedule(
    config: TrainConfig, there: Mapping[str, Value], start: Sequence[int]
) -> bool:
    """Return whether the learning rate's schedule begins anew at the checkpoint.

    A checkpoint of this very recipe whose schedule was begun anew was written by the same command:
    repeated, it resumes. config: complete. there: recipe of the checkpoint. start: position from
    which its schedule counts.
    """
    if not config.restart_schedule:
        return False
    return not any(start) or bool(differences(there, config))


def _plain(value: object) -> Value:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _option(name: str) -> str:
    return option({"global_batch_size": "batch_size"}.get(name, name))


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
