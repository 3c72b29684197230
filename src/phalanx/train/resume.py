"""The recipe of a run, by which it resumes: every option that decides its numbers.

How the work is split over ranks, and how gradients travel, is not part of it: a checkpoint goes on
under any strategy and on any number of ranks.

No torch, no MPI: what is told here is told before anything is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from phalanx.checkpoints.find import find_to_resume, nothing_left
from phalanx.checkpoints.manifest import TRAINER, Value, differing_values
from phalanx.models.options import completed, model_label
from phalanx.models.user_function import FunctionName
from phalanx.train.as_options import as_options
from phalanx.train.config import TrainConfig
from phalanx.train.options import AUTOMATIC, SCHEDULE, OptimizerOptions

SCHEDULE_START = "schedule_start"
"""Key in a run's state: epoch, and samples of it, from which the schedule counts."""

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


def allowed_changes(config: TrainConfig) -> bool | Sequence[str]:
    """Return which options may differ from those of the checkpoint, as `Checkpoints` takes them."""
    return config.allow_changes or (SCHEDULE if config.restart_schedule else False)


def restarts_schedule(
    config: TrainConfig, there: Mapping[str, Value], start: Sequence[int]
) -> bool:
    """Return whether the learning rate's schedule restarts at the checkpoint.

    A checkpoint of this very recipe whose schedule was begun anew was written by the same command:
    repeated, it resumes. config: complete. there: recipe of the checkpoint. start: position from
    which its schedule counts.
    """
    if not config.restart_schedule:
        return False
    return not any(start) or bool(differing_values(there, recipe_of(config)))


def nothing_to_do(config: TrainConfig) -> str:
    """Return a line where the checkpoint to resume from has all the epochs that were asked for, by
    this very recipe; empty: there are some to do.

    config: complete.
    Raises: UserError where nothing can be resumed there, or another run has the folder.
    """
    is_automatic = config.resume == AUTOMATIC
    place = config.checkpoint_dir if is_automatic else config.resume
    with as_options():
        found, _ = find_to_resume(config.checkpoint_dir, place, may_begin=is_automatic)
    if found is None or found.manifest.epochs_done < config.epochs:
        return ""
    if differing_values(found.manifest.program, recipe_of(config)):
        return ""  # the caller refuses or allows it
    return nothing_left(found.path, f"{found.manifest.epochs_done} epochs")


def _plain(value: object) -> Value:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return value if isinstance(value, str | int | float | bool | None) else str(value)
