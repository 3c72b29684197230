"""The scaling study: which runs it is made of. Pure; running them is `execute`'s work."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from phalanx.errors import UserError
from phalanx.models.options import ModelName
from phalanx.study.planned import TrainingRun
from phalanx.train.config import DEFAULT_BATCH_SIZE, DatasetName, TrainConfig
from phalanx.train.split import Strategy

QUICK_EPOCHS = 3
QUICK_TRAIN_SAMPLES, QUICK_VALIDATION_SAMPLES = 8_192, 2_000
FULL_EPOCHS = 5


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """What to compare. The defaults take about three minutes on two cores."""

    models: tuple[ModelName, ...] = ("mlp", "cnn", "rnn")
    """Networks to train."""

    strategies: tuple[Strategy, ...] = ("sequential", "mpi", "gloo")
    """Ways to train them."""

    ranks: tuple[int, ...] | None = None
    """Numbers of ranks for mpi, shared and gloo. Default: 1, 2, 4 … up to twice the cores."""

    threads: tuple[int, ...] | None = None
    """Numbers of threads for sequential. Default: 1, 2, 4 … up to the cores."""

    threads_per_rank: int = 1
    """Compute threads of each rank of mpi, shared and gloo."""

    batch_sizes: tuple[int, ...] = (DEFAULT_BATCH_SIZE,)
    """Global batch sizes; each is a study of its own within the report."""

    seeds: tuple[int, ...] = (0,)
    """Every run is repeated with each seed; several give the spread of the accuracy."""

    full: bool = False
    """All samples and 5 epochs, instead of 3 epochs of 8,192 samples, judged by 2,000."""

    epochs: int | None = None
    """Passes over the training data. Default: 3, or 5 with --full."""

    train_samples: int | None = None
    """Training samples of an epoch. Default: 8,192, or all with --full."""

    validation_samples: int | None = None
    """Validation samples that each epoch is judged by. Default: 2,000, or all with --full."""

    dataset: DatasetName = "auto"
    """`mnist`, the embedded `digits`, or `auto`: mnist where it is found, digits otherwise."""

    data_root: Path | None = None
    """Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder."""

    lr: float = 1e-3
    """Learning rate."""

    study_dir: Path | None = None
    """Folder of the study. Default: runs/scaling-…, the same for the same options, so that an
    interrupted study goes on when its command is given again."""

    timeout_s: float = 300.0
    """A run whose ranks have waited this long for each other has failed."""

    def __post_init__(self) -> None:
        for name in ("models", "strategies", "ranks", "threads", "batch_sizes", "seeds"):
            values = getattr(self, name)
            if values is not None and not values:
                raise UserError(f"--{name.replace('_', '-')} needs at least one value")
            if values is not None and len(set(values)) != len(values):
                raise UserError(f"--{name.replace('_', '-')} names a value twice: {values}")


def plan(study: ScalingConfig, cores: int) -> list[TrainingRun]:
    """Every run of the study, in the order in which they are made: those that are compared with
    each other one after the other, so that a machine that slows down slows all of them.

    Raises: UserError when an option does not fit (a batch smaller than the ranks).
    """
    return [
        _planned(study, model, strategy, ranks, threads, batch_size, seed)
        for model in study.models
        for batch_size in study.batch_sizes
        for seed in study.seeds
        for strategy, ranks, threads in layouts(study, cores)
    ]


def layouts(study: ScalingConfig, cores: int) -> Iterator[tuple[Strategy, int, int]]:
    """(strategy, ranks, threads of each rank)."""
    for strategy in study.strategies:
        if strategy == "sequential":
            for threads in study.threads or powers_of_two(cores):
                yield strategy, 1, threads
        else:
            for ranks in study.ranks or powers_of_two(2 * cores):
                yield strategy, ranks, study.threads_per_rank


def powers_of_two(largest: int) -> list[int]:
    return [2**exponent for exponent in range(largest.bit_length())]


def _planned(
    study: ScalingConfig,
    model: ModelName,
    strategy: Strategy,
    ranks: int,
    threads: int,
    batch_size: int,
    seed: int,
) -> TrainingRun:
    quick = not study.full
    config = TrainConfig(
        model=model,
        dataset=study.dataset,
        data_root=study.data_root,
        strategy=strategy,
        ranks=ranks,
        threads=threads,
        epochs=study.epochs or (QUICK_EPOCHS if quick else FULL_EPOCHS),
        batch_size=batch_size,
        lr=study.lr,
        seed=seed,
        train_samples=study.train_samples or (QUICK_TRAIN_SAMPLES if quick else None),
        validation_samples=study.validation_samples
        or (QUICK_VALIDATION_SAMPLES if quick else None),
        timeout_s=study.timeout_s,
    )
    config.global_batch_size(ranks)
    layout = f"{threads}t" if strategy == "sequential" else f"{ranks}x{threads}"
    return TrainingRun(name=f"{model}-{strategy}-{layout}-b{batch_size}-s{seed}", config=config)


def default_folder(study: ScalingConfig, dataset: str, runs: Path) -> Path:
    """The same folder for the same options."""
    options = msgspec.json.encode({k: str(v) for k, v in asdict(study).items()}, order="sorted")
    return runs / f"scaling-{dataset}-{hashlib.sha256(options).hexdigest()[:6]}"
