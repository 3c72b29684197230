"""A run before it begins: options completed, those of `phalanx trace` too, its folder named,
`run.json` begun; and the lines of its log. No torch, no MPI."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from phalanx.data.datasets.catalog import NUM_TRAIN_SAMPLES, DatasetChoice, resolve
from phalanx.errors import UserError
from phalanx.jobs.detect import Launched
from phalanx.jobs.record import (
    begin_record,
    default_folder,
    opening_fields,
    unused_folder,
)
from phalanx.models.options import model_label
from phalanx.models.user_function import FunctionName
from phalanx.parallel.option_groups import option
from phalanx.records.divergence import loss_text
from phalanx.records.events import SummaryEvent
from phalanx.records.schema import Run, Setting
from phalanx.records.waiting import communicates_within_passes
from phalanx.train.config import DEFAULTS, TrainConfig
from phalanx.train.validate import dataset_for, validate

if TYPE_CHECKING:
    from phalanx.data.sources.packed import PackDescription


# Options left out of a setting: those with a field of their own, and those that decide no number.
EXCLUDED_OPTIONS = {
    "strategy", "ranks", "threads", "mesh", "lr", "lr_rule", "lr_schedule", "optimizer", "dataset",
    "data_root", "data", "stage", "keep_staged", "trace", "model", "epochs", "batch_size",
    "per_rank_batch_size", "seed", "dtype", "checkpoint_dir", "checkpoint_steps",
    "checkpoint_seconds", "keep_checkpoints", "checkpoint_thread", "resume", "restart_schedule",
    "allow_changes", "run_dir", "grace_s", "timeout_s", "survive", "patience", "rebalance",
}  # fmt: skip


def complete(
    config: TrainConfig, launched: Launched | None
) -> tuple[TrainConfig, DatasetChoice | PackDescription]:
    """Fill in every default that depends on the machine, the launcher or the data found.

    Raises: UserError when the options do not fit these or each other, before anything is started.
    """
    msgspec.json.encode(
        config.as_record()
    )  # names that are no text are told before a folder is made
    config = with_ranks(config, launched)
    choice = _resolve_data(config)
    if isinstance(choice, DatasetChoice):
        config = replace(config, dataset=choice.name)
    if config.bitwise:
        config = replace(config, micro_batches=config.bitwise_micro_batches())
    validate(config, choice.shape)
    _check_writable("--stage", config.stage)
    if config.resume and config.run_dir:  # a job that is queued again has no checkpoint yet
        config = replace(config, run_dir=unused_folder(config.run_dir))
    return config, choice


def with_ranks(config: TrainConfig, launched: Launched | None) -> TrainConfig:
    """Fill in the number of ranks, and the threads of each on this node.

    Raises: UserError when the options do not fit the launcher or the machine.
    """
    if launched is not None:
        _check_launcher(config, launched)
    request = config.rank_request().complete(launched)
    return replace(config, ranks=request.ranks, threads=request.threads)


def _check_launcher(config: TrainConfig, launched: Launched) -> None:
    """Raise UserError where the launcher has started other ranks than the strategy has."""
    if config.strategy == "sequential" and launched.world_size > 1:
        raise UserError(
            f"{launched.launcher} started {launched.world_size} processes, but --strategy "
            "sequential uses one: use --strategy mpi, shared or gloo, or start it without a "
            "launcher"
        )
    if config.uses_mpi and launched.launcher == "torchrun":
        raise UserError(
            f"--strategy {config.strategy} needs MPI ranks, which torchrun does not start: use "
            "mpirun, or --ranks without a launcher"
        )


def _check_writable(option: str, folder: Path | None) -> None:
    """Find out before ranks are started whether `folder` can be written to, or made."""
    if folder is None:
        return
    place = folder
    while not place.exists():  # raises OSError for a name that is too long
        place = place.parent
    if not place.is_dir():
        raise UserError(f"{option} {folder}: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"{option} {folder}: {place} is not writable: choose another folder")


def _resolve_data(config: TrainConfig) -> DatasetChoice | PackDescription:
    if config.data is None:
        return resolve(dataset_for(config), config.data_root)
    from phalanx.data.sources.packed import describe  # imports NumPy

    return describe(config.data)


def setting_of(config: TrainConfig) -> Setting:
    """Return everything that decides the run's numbers; `config` is complete."""
    global_batch_size, ranks = config.global_batch_size(), config.rank_request()
    return Setting(
        model=model_label(config.model),
        dataset=config.data_name,
        strategy=config.strategy,
        ranks=config.num_ranks,
        threads=config.threads or ranks.threads_as_here(),
        global_batch_size=global_batch_size,
        epochs=config.epochs,
        learning_rate=config.learning_rate(global_batch_size),
        learning_rate_rule=config.lr_rule,
        learning_rate_schedule=config.lr_schedule,
        optimizer=config.optimizer,
        seed=config.seed,
        dtype=config.dtype,
        mesh=config.axes(),
        nodes=ranks.num_nodes,
        options=_options(config),
    )


def _options(config: TrainConfig) -> dict[str, str | int | float | bool]:
    """Return the options with non-default values among those that only some runs have."""
    return {
        name: value if isinstance(value, int | float) else _text(name, value)
        for name, value in config.options().items()
        if name not in EXCLUDED_OPTIONS and value != DEFAULTS[name]
    }


def _text(name: str, value: object) -> str:
    if name in ("loss", "tensor_plan"):
        return FunctionName.parse(option(name), str(value)).label
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def new_folder(config: TrainConfig) -> Path:
    """Return a folder name for a run that was given none; it is not made yet."""
    ranks = "" if config.strategy == "sequential" else f"-{config.ranks}"
    model = model_label(config.model).replace(".py:", "-").replace(":", "-")
    return default_folder("train", f"{model}-{config.strategy}{ranks}")


def folder_of(config: TrainConfig) -> Path:
    """Return the folder of a run's records; it is not made yet. `config` is complete."""
    return config.run_dir or new_folder(config)


def begin_run(
    folder: Path, config: TrainConfig, *, study: str, command: Sequence[str], mpi: object | None
) -> None:
    """Make the folder and write `run.json`, running.

    Raises: UserError when the folder holds another run's records or cannot be written.
    """
    run = Run(
        study=study,
        run=folder.name,
        config=config.as_record(),
        setting=setting_of(config),
        **opening_fields(command, mpi),
    )
    begin_record(folder, run)


def title(config: TrainConfig) -> str:
    """Return the first line of the log: what is about to be trained."""
    setting = setting_of(config)
    ranks = "" if setting.strategy == "sequential" else f"{_count(setting.ranks, 'rank')} × "
    threads = "its node's cores" if config.threads is None else _count(setting.threads, "thread")
    scheme = _strategy_details(config, setting)
    return (
        f"{setting.model} on {setting.dataset}: {setting.strategy}{scheme and f' ({scheme})'}, "
        f"{ranks}{threads}, "
        f"global batch {setting.global_batch_size}, {setting.optimizer}, "
        f"learning rate {setting.learning_rate:g} "
        f"(rule: {_rule_text(config, setting)}, schedule: {_schedule_text(config, setting)})"
    )


def _rule_text(config: TrainConfig, setting: Setting) -> str:
    """Return the rule of the learning rate; for a scaled rate also from what, and for which
    batch."""
    if setting.learning_rate == config.lr:
        return setting.learning_rate_rule
    return (
        f"{setting.learning_rate_rule}, from {config.lr:g} for batch {config.default_batch_size} "
        f"to {setting.learning_rate:g} for batch {setting.global_batch_size}"
    )


def _schedule_text(config: TrainConfig, setting: Setting) -> str:
    if not config.warmup_epochs:
        return setting.learning_rate_schedule
    epochs = f"{config.warmup_epochs:g} epoch{'s' * (config.warmup_epochs != 1)}"
    return f"{config.warmup} warm-up of {epochs}, then {setting.learning_rate_schedule}"


def _strategy_details(config: TrainConfig, setting: Setting) -> str:
    """Return details of the strategy besides its name."""
    if config.strategy == "server":
        servers = _count(config.servers, "server")
        workers = _count(setting.ranks - config.servers, "worker")
        is_bounded = config.server_mode == "bounded"
        lead = f", at most {_count(config.staleness, 'step')} ahead" if is_bounded else ""
        return f"{servers}, {workers}, {config.server_mode}{lead}"
    if config.bitwise:
        number = config.bitwise_micro_batches() or 1
        return f"bitwise, {_count(number, 'micro-batche' if number != 1 else 'micro-batch')}"
    if config.strategy == "local":
        return f"{_count(config.local_steps, 'step')}, {config.outer_optimizer}"
    return " × ".join(f"{axis} {number}" for axis, number in setting.mesh.items())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


VALIDATION_SAMPLES = 500
"""Evaluated after an epoch; few, as evaluation is not what the trace is for."""


def few_steps(config: TrainConfig, steps: int) -> TrainConfig:
    """Return the config of the same run, traced, in `steps` steps; where the data has fewer, in
    several epochs, rounded up to full ones. `config` is complete.

    Raises: UserError when there is no step to be made.
    """
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")
    wanted = steps * config.global_batch_size()
    available = config.train_samples or num_available(config)
    return replace(
        config,
        trace=True,
        epochs=-(-wanted // available),
        train_samples=min(wanted, available),
        validation_samples=config.validation_samples or VALIDATION_SAMPLES,
    )


def num_available(config: TrainConfig) -> int:
    """Return the training samples that the data of a complete config has."""
    from phalanx.data.datasets.inventory import inventory  # these import NumPy
    from phalanx.data.packed.index_file import read_index

    if config.data is not None:
        return read_index(config.data / "train").num_samples
    name = resolve(config.dataset, config.data_root).name
    if name in ("digits", "mnist", "fashion"):
        return NUM_TRAIN_SAMPLES
    found = {holding.name: holding for holding in inventory(config.data_root)}
    return found[name].num_train_samples


def epoch_line(summary: SummaryEvent, config: TrainConfig) -> str:
    """One epoch as a line of a log. config: complete."""
    return (
        f"epoch {summary.epoch + 1}/{config.epochs}"
        f"  loss {loss_text(summary.train_loss)}"
        f"  validation {loss_text(summary.validation_loss or 0.0)}"
        f"{accuracy_text(summary.validation_accuracy, config)}"
        f"  {summary.images_per_s:,.0f} {samples_word(config)}/s"
        f"{communication_words(config, summary.communication_share)}"
        f"  {summary.epoch_s:.2f} s"
        f"{_damaged(summary)}{_skipped(summary)}"
    )


def communication_words(config: TrainConfig, share: float) -> str:
    """A dash where messages go within the passes, and are timed as these."""
    within = not config.bitwise and communicates_within_passes(config.strategy, config.zero_stage)
    return "  communication " + ("\N{EN DASH}" if within else f"{share:.1%}")


def _damaged(summary: SummaryEvent) -> str:
    if not summary.damaged:
        return ""
    return (
        f"  {summary.damaged:,} damaged {'sample' if summary.damaged == 1 else 'samples'} left out"
    )


def _skipped(summary: SummaryEvent) -> str:
    if not summary.skipped:
        return ""
    return f"  {summary.skipped:,} step{'s' * (summary.skipped > 1)} skipped"


def samples_word(config: TrainConfig) -> str:
    """Return the word for samples: images, or samples (of text, windows of characters)."""
    return "samples" if config.dataset == "text" or config.data else "images"


def accuracy_text(accuracy: float | None, config: TrainConfig) -> str:
    """Return the accuracy with its word; nothing where the loss asks for no classes."""
    return "" if accuracy is None else f"  {accuracy_words(config)} {accuracy:.2%}"


def accuracy_words(config: TrainConfig) -> str:
    """Return the word for the accuracy: of images, or of predicted next characters."""
    return "characters right" if config.dataset == "text" else "accuracy"
