"""The large-batch study: one training with ever larger batches, by every remedy. Pure; making the
runs is `execute`'s work.

The base recipe, SGD with momentum, is good at the smallest batch. It is then run as it is with
larger ones, and with what is said to help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from phalanx.errors import UserError
from phalanx.models.options import ModelName
from phalanx.records.configuration import check_counts, check_values
from phalanx.study.options import StudyOptions
from phalanx.study.run import TrainingRun
from phalanx.train.config import TrainConfig
from phalanx.train.options import DEFAULT_BATCH_SIZE

RemedyName = Literal["plain", "linear", "linear-warmup", "sqrt-warmup", "lars", "lamb"]

QUICK_BATCH_SIZES = (DEFAULT_BATCH_SIZE, 1_024, 8_192)
FULL_BATCH_SIZES = (DEFAULT_BATCH_SIZE, 512, 1_024, 2_048, 4_096, 8_192, 16_384)
QUICK_EPOCHS, FULL_EPOCHS = 6, 20
QUICK_SEEDS, FULL_SEEDS = (0, 1, 2), (0, 1, 2, 3, 4)
FINAL_TRAIN_SAMPLES = 10_000
"""Samples that the final model is judged by, for the generalisation gap."""

WARM_UP = {"warmup_part": 0.25}
"""Share of the run's epochs."""

REMEDIES: Mapping[RemedyName, Mapping[str, Any]] = {
    "plain": {},
    "linear": {"lr_rule": "linear"},
    "linear-warmup": {"lr_rule": "linear", **WARM_UP},
    "sqrt-warmup": {"lr_rule": "sqrt", **WARM_UP},
    "lars": {"optimizer": "lars", "lr_rule": "sqrt", **WARM_UP},
    "lamb": {"optimizer": "lamb", "lr_rule": "sqrt", **WARM_UP},
}
"""Changes to the base recipe for large batches, as options of `TrainConfig`. Another optimizer is a
recipe of its own, which differs from the base at the smallest batch as well."""


@dataclass(frozen=True, kw_only=True)
class LargeBatchConfig(StudyOptions):
    """Options of the large-batch study. The defaults take some ten minutes on two cores."""

    batch_sizes: tuple[int, ...] | None = None
    """Global batch sizes; the first is the baseline. Default: 128, 1024 and 8192, or 128 … 16384
    with --full."""

    remedies: tuple[RemedyName, ...] = tuple(REMEDIES)
    """Remedies: none (`plain`), a scaled rate (`linear`), with warm-up as well (`linear-warmup`,
    `sqrt-warmup`), the optimizers `lars` and `lamb`."""

    seeds: tuple[int, ...] | None = None
    """Seeds, with each of which every run is repeated. Default: 0 1 2, or 0 … 4 with --full."""

    full: bool = False
    """Use all batch sizes, 5 seeds and 20 epochs."""

    model: ModelName = "mlp"
    """Network to train."""

    epochs: int | None = None
    """Passes over the training data. Default: 6, or 20 with --full."""

    lr: float = 0.03
    """Learning rate of the base recipe, SGD with momentum 0.9, for batch 128."""

    clip_norm: float | None = 0.5
    """Norm to which gradients of the base recipe are clipped."""

    weight_decay: float = 5e-4
    """Weight decay of the base recipe."""

    label_smoothing: float = 0.1
    """Label smoothing of every recipe."""

    lars_lr: float = 0.18
    """Learning rate of `lars` for batch 128; it grows with the square root of the batch."""

    trust_coefficient: float = 0.02
    """Trust coefficient of `lars`."""

    lamb_lr: float = 0.0035
    """Learning rate of `lamb` for batch 128; it grows with the square root of the batch."""

    train_samples: int | None = None
    """Training samples per epoch. Default: all."""

    validation_samples: int | None = None
    """Validation samples after each epoch. Default: all."""

    device: str = "cpu"
    """Device of each run, as for `phalanx train`."""

    threads: int = 1
    """Compute threads of each run."""

    timeout_s: float = 300.0
    """Seconds without new output after which a run counts as failed."""

    def __post_init__(self) -> None:
        check_values(self, "batch_sizes", "remedies", "seeds")
        check_counts(self, 1, "batch_sizes")

    @property
    def batches(self) -> tuple[int, ...]:
        return self.batch_sizes or (FULL_BATCH_SIZES if self.full else QUICK_BATCH_SIZES)

    @property
    def num_epochs(self) -> int:
        return self.epochs or (FULL_EPOCHS if self.full else QUICK_EPOCHS)


def runs_of(study: LargeBatchConfig, num_samples: int | None = None) -> list[TrainingRun]:
    """Return every run, seed by seed: an interrupted study has all remedies for some seeds.

    num_samples: of the data set's training part; a batch must fit into it.
    Raises: UserError for a batch larger than the data.
    """
    available = min(n for n in (study.train_samples, num_samples, 2**62) if n is not None)
    if max(study.batches) > available:
        raise UserError(
            f"--batch-sizes {max(study.batches)} exceeds the {available} training samples: use "
            "smaller batches"
        )
    seeds = study.seeds or (FULL_SEEDS if study.full else QUICK_SEEDS)
    return [
        TrainingRun(name=f"{remedy}-b{batch}-s{seed}", config=_config(study, remedy, batch, seed))
        for seed in seeds
        for batch, remedy in cells(study)
    ]


def cells(study: LargeBatchConfig) -> Iterator[tuple[int, RemedyName]]:
    """(batch, remedy). At the first batch the base recipe, whether it was asked for or not, and
    what is a recipe of its own; a learning rate that is scaled by 1 is no remedy."""
    first = study.batches[0]
    yield first, "plain"
    yield from ((first, name) for name in study.remedies if "optimizer" in REMEDIES[name])
    for batch in study.batches[1:]:
        yield from ((batch, name) for name in study.remedies)


def _config(study: LargeBatchConfig, name: RemedyName, batch: int, seed: int) -> TrainConfig:
    remedy = dict(REMEDIES[name])
    warmup_epochs = study.num_epochs * remedy.pop("warmup_part", 0.0)
    samples = ("train_samples", "validation_samples")
    recipe = {
        **study.passed_on("model", "device", "threads", "label_smoothing", *samples),
        **{"optimizer": "sgd", **_constants(study, name), **remedy},
    }
    return TrainConfig.from_options(
        **recipe,
        epochs=study.num_epochs,
        warmup_epochs=warmup_epochs,
        batch_size=batch,
        seed=seed,
        final_train_samples=study.validation_samples or FINAL_TRAIN_SAMPLES,
    )


def _constants(study: LargeBatchConfig, name: RemedyName) -> dict[str, object]:
    match name:
        case "lars":
            return {"lr": study.lars_lr, "trust_coefficient": study.trust_coefficient}
        case "lamb":
            return {"lr": study.lamb_lr}
        case _:
            return study.passed_on("lr", "clip_norm", "weight_decay")
