"""The parallelism study: every way to split one and the same training, on several numbers of ranks;
then `examples/scratch` on more and more workers.

Pure; making the runs is `execute`'s work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import phalanx
from phalanx.errors import UserError
from phalanx.models.options import DataShape, ModelName
from phalanx.records.configuration import check_counts, check_values
from phalanx.study.epoch_lines import ProgramConfig
from phalanx.study.options import StudyOptions
from phalanx.study.programs import ProgramTraining
from phalanx.study.run import COUNT, StudyRun, StudyRuns, TrainingRun
from phalanx.train.config import TrainConfig
from phalanx.train.options import DatasetName
from phalanx.train.validate import validate

CHAINS: tuple[ModelName, ...] = ("mlp", "gpt")
"""Models that can be cut into stages and along their layers."""
OF_IMAGES: tuple[ModelName, ...] = ("mlp", "cnn", "rnn", "resnet")
ALL: tuple[ModelName, ...] = (*OF_IMAGES, "gpt")


@dataclass(frozen=True, kw_only=True)
class StudyScheme:
    options: Mapping[str, object]  # options of `TrainConfig`
    is_leading: bool
    """A quick study runs it on every number of ranks, the others on the largest alone."""
    ranks: int | None
    """Only number of ranks that it runs on."""
    leads_for: tuple[ModelName, ...]
    """Models to run it on if no schemes are named."""


def _on(
    models: tuple[ModelName, ...] = OF_IMAGES,
    *,
    leads: bool = False,
    only_ranks: int | None = None,
    **options: object,
) -> StudyScheme:
    return StudyScheme(options=options, is_leading=leads, ranks=only_ranks, leads_for=models)


SCHEMES: Mapping[str, StudyScheme] = {
    "sequential": _on(ALL, leads=True, only_ranks=1, strategy="sequential"),
    "mpi": _on(ALL, leads=True, strategy="mpi"),
    **{
        method: _on(strategy="mpi", all_reduce=method)
        for method in ("library", "ring", "tree", "halving", "naive")
    },
    "shared": _on(leads=True, strategy="shared"),
    "gloo": _on(leads=True, strategy="gloo"),
    "server": _on(strategy="server", server_mode="synchronous"),
    "server-asynchronous": _on(strategy="server", server_mode="asynchronous"),
    "server-bounded": _on(strategy="server", server_mode="bounded", staleness=2),
    "two-servers": _on(strategy="server", server_mode="synchronous", servers=2),
    "local": _on(leads=True, strategy="local"),
    "local-nesterov": _on(strategy="local", outer_optimizer="nesterov"),
    "zero-1": _on(strategy="zero", zero_stage=1),
    "zero-2": _on(strategy="zero", zero_stage=2),
    "zero-3": _on(leads=True, strategy="zero", zero_stage=3),
    "zero-3-gloo": _on(strategy="zero", zero_stage=3, backend="gloo"),
    "tensor": _on(CHAINS, leads=True, strategy="tensor"),
    **{
        schedule: _on(
            ("gpt",), leads=schedule == "1f1b", strategy="pipeline", pipeline_schedule=schedule
        )
        for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble")
    },
    "dp2-tp2": _on(CHAINS, only_ranks=4, mesh="dp=2,tp=2"),
    "dp2-pp2": _on(("gpt",), only_ranks=4, mesh="dp=2,pp=2"),
    "tp2-pp2": _on(("gpt",), only_ranks=4, mesh="tp=2,pp=2"),
    "shard2-tp2": _on(CHAINS, only_ranks=4, mesh="shard=2,tp=2"),
}


IMAGES: Mapping[str, int | None] = {
    **{"width": None, "batch_size": 128, "epochs": 6},
    **{"train_samples": 4_096, "validation_samples": 1_000},
}
TEXT: Mapping[str, int] = {
    # Enough layers for 4 ranks of two stages each, and few enough to take seconds.
    **{"width": 64, "layers": 6, "heads": 4, "batch_size": 16, "epochs": 6},
    **{"train_samples": 128, "validation_samples": 64},
}
FULL_TEXT = {"train_samples": 2_048, "validation_samples": 512}
"""Sizes of a model and its training, the same for every scheme."""


@dataclass(frozen=True, kw_only=True)
class ParallelismConfig(StudyOptions):
    """Options of the parallelism study. The defaults take some minutes on two cores."""

    models: tuple[ModelName, ...] = ("mlp", "gpt")
    """Networks to train; `gpt` learns text, the others images."""

    schemes: tuple[str, ...] | None = None
    """Schemes of parallel training, such as mpi, ring, gloo, server, local, zero-3, tensor, 1f1b or
    dp2-tp2; docs/studies.md names all. Default: all that suit the model."""

    ranks: tuple[int, ...] = (2, 4)
    """Numbers of ranks. A quick study runs leading schemes on all, others on the largest."""

    full: bool = False
    """Run every scheme on every number of ranks, with all samples of the images."""

    width: int | None = None
    """Hidden units of the `mlp`, width of the `gpt`. Default: 256 and 64."""

    batch_size: int | None = None
    """Global batch size, summed over all ranks. Default: 128, and 16 for gpt."""

    epochs: int | None = None
    """Passes over the training data; the first is not timed. Default: 6."""

    train_samples: int | None = None
    """Training samples per epoch. Default: 4,096, and 128 for gpt."""

    validation_samples: int | None = None
    """Validation samples after each epoch. Default: 1,000, and 64 for gpt."""

    seeds: tuple[int, ...] = (0,)
    """Seeds, with each of which every run is repeated; several give intervals."""

    dataset: DatasetName = "auto"
    """Images: `mnist`, the embedded `digits`, or `auto`: mnist if it is found."""

    lr: float = 1e-3
    """Learning rate."""

    scratch: bool = True
    """Run the second part: the network from scratch on increasing numbers of workers."""

    hidden: tuple[int, ...] = (64, 256)
    """Second part: widths of its hidden layer."""

    workers: tuple[int, ...] = (1, 2, 4, 8, 32, 128)
    """Second part: numbers of workers. Beyond 8 a quick study runs only the narrowest network."""

    algorithms_s: float = 15.0
    """Third part: seconds for the all-reduce algorithms over messages, by size; 0 for none."""

    def __post_init__(self) -> None:
        check_values(self, "models", "schemes", "ranks", "seeds", "hidden", "workers")
        if unknown := [name for name in self.schemes or () if name not in SCHEMES]:
            raise UserError(f"--schemes {unknown[0]} is not one of {', '.join(SCHEMES)}")
        if not self.algorithms_s >= 0:
            raise UserError(f"--algorithms-s must not be negative, not {self.algorithms_s:g}")
        check_counts(self, 1, "ranks", "hidden", "workers")


def runs_of(study: ParallelismConfig, shapes: dict[ModelName, DataShape]) -> StudyRuns:
    """Every run of the study, in the order in which they are made: those of one model and number
    of ranks one after the other, so that a machine that slows down slows all that are compared.

    shapes: of the data of each model.
    Raises: UserError when there is nothing to run.
    """
    runs: list[StudyRun] = []
    left_out: dict[str, str] = {}
    for seed in study.seeds:
        for model in study.models:
            for scheme, ranks in layouts(study, model):
                name = f"{model}-{scheme}-{ranks}-s{seed}"
                try:
                    config = _config(study, model, scheme, ranks, seed)
                    validate(config, shapes[model])
                except UserError as error:
                    left_out[name] = str(error).splitlines()[0]
                    continue
                runs.append(TrainingRun(name=name, config=config, environment=COUNT))
    if not runs:
        reason = next(iter(left_out.values()), "no scheme suits these models and ranks")
        raise UserError(f"there is nothing to run: {reason}")
    return StudyRuns(runs=runs, left_out=left_out)


def layouts(study: ParallelismConfig, model: ModelName) -> Iterator[tuple[str, int]]:
    """(scheme, ranks), by increasing ranks: 1 rank for `sequential`, 4 for a grid of 2 × 2."""
    chosen = [name for name in SCHEMES if _is_wanted(study, name, model)]
    fixed = {SCHEMES[name].ranks for name in chosen} - {None}
    for ranks in sorted({*study.ranks, *(number for number in fixed if number)}):
        for name in chosen:
            scheme = SCHEMES[name]
            if scheme.ranks is not None:
                suits = scheme.ranks == ranks
            else:
                everywhere = study.full or study.schemes is not None or scheme.is_leading
                suits = ranks in study.ranks and (everywhere or ranks == max(study.ranks))
            if suits:
                yield name, ranks


def _is_wanted(study: ParallelismConfig, name: str, model: ModelName) -> bool:
    if study.schemes is not None:
        return name in study.schemes
    scheme = SCHEMES[name]
    # Only a study with at least 4 ranks includes meshes of 2 × 2.
    return model in scheme.leads_for and (scheme.ranks or 1) <= max(study.ranks)


def size_of(study: ParallelismConfig, model: ModelName) -> dict[str, int | None]:
    """Return the model's size, with the options of the study in place of the defaults."""
    is_text = model == "gpt"
    size = dict[str, int | None](TEXT if is_text else IMAGES)
    if study.full:
        size |= FULL_TEXT if is_text else dict.fromkeys(FULL_TEXT)
    size |= {name: value for name in size if (value := getattr(study, name, None))}
    if model in ("cnn", "rnn"):
        del size["width"]
    return size


def _config(
    study: ParallelismConfig, model: ModelName, scheme: str, ranks: int, seed: int
) -> TrainConfig:
    data = {"dataset": "text", "data_root": None} if model == "gpt" else {}
    return TrainConfig.from_options(
        **{**study.passed_on("lr"), **data},
        model=model,
        ranks=ranks,
        threads=1,
        seed=seed,
        **size_of(study, model),
        **SCHEMES[scheme].options,
    )


PROGRAM = Path("examples", "scratch", "train.py")
BATCH_SIZE = 128
QUICK_SAMPLES, FULL_SAMPLES = 256, 1_280
VALIDATION_SAMPLES = 500
QUICK_EPOCHS, FULL_EPOCHS = 2, 3
MOST_WORKERS_OF_EACH_WIDTH = 8
"""Limit of a quick study; beyond, the narrowest network stands for all."""

ScratchScheme = Literal["alone", "server", "library", "ring"]


def find_program() -> Path | None:
    """Return the program in the checkout that Phalanx runs from, or below the working folder."""
    checkout = Path(phalanx.__file__).parents[2]
    return next((root / PROGRAM for root in (checkout, Path()) if (root / PROGRAM).exists()), None)


def scratch_runs(study: ParallelismConfig) -> StudyRuns:
    """Return the runs from scratch: one process, then more workers, each scheme and width."""
    runs: list[ProgramTraining] = []
    left_out: dict[str, str] = {}
    program = find_program()
    for scheme, hidden, workers in scratch_layouts(study):
        ranks = workers + 1 if scheme == "server" else workers
        name = f"scratch-{scheme}-{ranks}-h{hidden}"
        if program is None:
            left_out[name] = f"there is no {PROGRAM} here: start in a checkout of Phalanx"
        elif workers > BATCH_SIZE:
            left_out[name] = f"a batch of {BATCH_SIZE} cannot be split over {workers} workers"
        else:
            words = (str(program), *program_options(study, scheme, hidden))
            config = ProgramConfig(
                words=words,
                strategy="sequential" if scheme == "alone" else scheme,
                ranks=ranks,
                threads=1,
                seed=0,
                epoch_pattern=None,
            )
            runs.append(ProgramTraining(name=name, config=config))
    return StudyRuns(runs=runs, left_out=left_out)


def program_options(study: ParallelismConfig, scheme: ScratchScheme, hidden: int) -> Iterator[str]:
    """Yield the words after the program."""
    options = {
        "scheme": scheme,
        "hidden": hidden,
        "batch-size": BATCH_SIZE,
        "epochs": FULL_EPOCHS if study.full else QUICK_EPOCHS,
        "train-samples": FULL_SAMPLES if study.full else QUICK_SAMPLES,
        "validation-samples": VALIDATION_SAMPLES,
        "dataset": "digits",
        "timeout-s": study.timeout_s,
    }
    for name, value in options.items():
        yield from (f"--{name}", f"{value}")


def scratch_layouts(study: ParallelismConfig) -> Iterator[tuple[ScratchScheme, int, int]]:
    """(scheme, hidden units, workers): those that are compared one after the other."""
    for workers in sorted(study.workers):
        for hidden in study.hidden:
            narrowest = hidden == min(study.hidden)
            if workers > MOST_WORKERS_OF_EACH_WIDTH and not (study.full or narrowest):
                continue
            if workers == 1:
                yield "alone", hidden, 1
            schemes: tuple[ScratchScheme, ...] = ("server", "library", "ring")
            # One worker without servers equals the single process.
            yield from ((s, hidden, workers) for s in schemes if workers > 1 or s == "server")
