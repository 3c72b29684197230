"""A short traced run, for `phalanx trace`. No torch, no MPI."""

from __future__ import annotations

from dataclasses import replace

from phalanx.data.datasets.catalog import NUM_TRAIN_SAMPLES, resolve
from phalanx.errors import UserError
from phalanx.train.config import TrainConfig

VALIDATION_SAMPLES = 500
"""Evaluated after an epoch; few, as evaluation is not what the trace is for."""


def few_steps(config: TrainConfig, steps: int) -> TrainConfig:
    """Return the config of the same run, traced, in `steps` steps; where the data has fewer, in
    several epochs, rounded up to full ones. `config` is complete.

    Raises: UserError when there is no step to be made.
    """
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")
    wanted = steps * config.global_batch_size(config.num_ranks)
    available = config.train_samples or _num_available(config)
    return replace(
        config,
        trace=True,
        epochs=-(-wanted // available),
        train_samples=min(wanted, available),
        validation_samples=config.validation_samples or VALIDATION_SAMPLES,
    )


def _num_available(config: TrainConfig) -> int:
    from phalanx.data.datasets.inventory import inventory  # these import NumPy
    from phalanx.data.packed.index_file import read_index

    if config.data is not None:
        return read_index(config.data / "train").num_samples
    name = resolve(config.dataset, config.data_root).name
    if name in ("digits", "mnist", "fashion"):
        return NUM_TRAIN_SAMPLES
    found = {holding.name: holding for holding in inventory(config.data_root)}
    return found[name].num_train_samples
