"""The recipe of a run: every option that decides its numbers, to be compared when it resumes.

How the work is split over ranks, and how gradients travel, is not part of it: a checkpoint goes on
under any strategy and on any number of ranks. No torch, no MPI.
"""

from __future__ import annotations

from dataclasses import fields

from phalanx.checkpoints.manifest import Manifest, Value
from phalanx.models.options import model_label
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
_OTHERS = ("epochs", "autocast")


def recipe_of(config: TrainConfig) -> dict[str, Value]:
    """Return the options by name, as plain values; `data` is the fingerprint of packed data."""
    fingerprint = ""
    if config.data is not None:
        from phalanx.data.sources.pack_description import describe  # imports NumPy

        fingerprint = describe(config.data).fingerprint
    learning = [field.name for field in fields(OptimizerOptions) if field.name != "optimizer"]
    names = (*learning, *_OF_THE_DATA, *_OTHERS)
    loss = None if config.loss is None else FunctionName.parse("--loss", config.loss).label
    recipe = {name: _plain(getattr(config, name)) for name in names}
    number = config.bitwise_micro_batches(config.ranks or 1)
    cut: dict[str, Value] = {} if number is None else {"bitwise": True, "micro_batches": number}
    return recipe | {"data": fingerprint, "loss": loss} | cut


def differences(manifest: Manifest, config: TrainConfig) -> dict[str, str]:
    """Return by option what the checkpoint has and what this run wants, where that differs.

    config: complete. `epochs` counts only where the learning rate depends on it.
    """
    assert config.ranks is not None, "complete() comes first"
    recipe = recipe_of(config)
    pairs: dict[str, tuple[Value, Value]] = {
        "model": (manifest.model, model_label(config.model)),
        "dataset": (manifest.dataset, config.data_name),
        "seed": (manifest.seed, config.seed),
        "global_batch_size": (
            manifest.global_batch_size, config.global_batch_size(config.ranks)
        ),
    }  # fmt: skip
    names = [*recipe, *(name for name in manifest.recipe if name not in recipe)]
    pairs |= {name: (manifest.recipe.get(name), recipe.get(name)) for name in names}
    if recipe["data"]:  # known by its content, whatever the folder is called
        del pairs["dataset"]
    if manifest.recipe.get("lr_schedule") == recipe.get("lr_schedule") == "constant":
        pairs.pop("epochs", None)
    return {
        name: f"{_option(name)} {_shown(found)} there, {_shown(wanted)} here"
        for name, (found, wanted) in pairs.items()
        if found != wanted
    }


def restarts_schedule(manifest: Manifest, config: TrainConfig) -> bool:
    """Return whether the learning rate's schedule begins anew at the checkpoint.

    A checkpoint of this very recipe whose schedule was begun anew was written by the same command:
    repeated, it resumes. config: complete.
    """
    if not config.restart_schedule:
        return False
    return manifest.schedule_start == (0, 0) or bool(differences(manifest, config))


def _plain(value: object) -> Value:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _option(name: str) -> str:
    return option({"global_batch_size": "batch_size"}.get(name, name))


def _shown(value: Value) -> str:
    return "none" if value is None or value == "" else str(value)
