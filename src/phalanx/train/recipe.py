"""The recipe of a run: every option that decides its numbers, to be compared when it resumes.

How the work is split over ranks, and how gradients travel, is not part of it: a checkpoint goes on
under any strategy and on any number of ranks. No torch, no MPI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from phalanx.checkpoints.manifest import TRAINER, Value
from phalanx.models.options import completed, model_label
from phalanx.models.user_function import FunctionName
from phalanx.parallel.option_groups import option
from phalanx.train.config import TrainConfig
from phalanx.train.optimizer_options import OptimizerOptions

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
    number = config.bitwise_micro_batches(config.num_ranks)
    cut: dict[str, Value] = {} if number is None else {"bitwise": True, "micro_batches": number}
    sizes = vars(completed(config.model, config.model_options))
    return {
        TRAINER: "phalanx train",
        "model": model_label(config.model),
        **{name: value for name, value in sizes.items() if value is not None},
        "dataset": "" if fingerprint else config.data_name,  # else known by its content
        "global_batch_size": config.global_batch_size(config.num_ranks),
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
    names = [*here, *(name for name in there if name not in here)]
    if "constant" in (there.get("lr_schedule"), here.get("lr_schedule")):
        names = [name for name in names if name != "epochs"]
    return {
        name: f"{_option(name)} {_shown(there.get(name))} there, {_shown(here.get(name))} here"
        for name in names
        if there.get(name) != here.get(name)
    }


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


def _shown(value: Value) -> str:
    return "none" if value is None or value == "" else str(value)
