"""The scaling study: which runs it is made of. Pure; running them is `execute`'s work."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.errors import UserError
from phalanx.jobs.allocation import HOSTS, Allocation, allocation
from phalanx.models.options import ModelName
from phalanx.parallel.options import StrategyName
from phalanx.records.configuration import check_values
from phalanx.study.options import StudyOptions
from phalanx.study.run import TrainingRun
from phalanx.train.config import TrainConfig
from phalanx.train.options import DEFAULT_BATCH_SIZE

EPOCHS = 6
"""The first is warm-up, which leaves five that are timed."""

SEEDS = (0, 1, 2)
"""Runs of the same work differ by some percent from one to the next: an interval needs several."""

QUICK_MODELS: tuple[ModelName, ...] = ("mlp", "cnn")
FULL_MODELS: tuple[ModelName, ...] = ("mlp", "cnn", "rnn")
QUICK_TRAIN_SAMPLES: Mapping[str, int] = {"mlp": 8_192, "resnet": 512}
QUICK_VALIDATION_SAMPLES = 500
OTHER_TRAIN_SAMPLES = 1_024
"""Samples of a quick study: an epoch is to take less than a second on one core, and a run less
than what it takes to start it."""


@dataclass(frozen=True, kw_only=True)
class ScalingConfig(StudyOptions):
    """Options of the scaling study. The defaults take about three minutes on two cores."""

    models: tuple[ModelName, ...] | None = None
    """Networks to train. Default: mlp and cnn; with --full also rnn."""

    strategies: tuple[StrategyName, ...] = ("sequential", "mpi", "gloo")
    """Strategies to train them with."""

    ranks: tuple[int, ...] | None = None
    """Numbers of ranks for mpi, shared and gloo. Default: 2 and as many as there are cores; with
    --full 1, 2, 4 … up to twice the cores."""

    nodes: tuple[int, ...] | None = None
    """Numbers of nodes: ranks are spread evenly over the first 1, 2, 3 … nodes of --hosts or of the
    allocation, as their slots allow. --ranks then defaults to the slots of each number of nodes.
    Default: as many nodes as the ranks fill."""

    threads: tuple[int, ...] | None = None
    """Numbers of threads for sequential. Default: 1 and as many as there are cores; with --full
    1, 2, 4 … up to the cores."""

    device: str = "cpu"
    """Device of each rank, as for `phalanx train`; accelerators for sequential and mpi."""

    threads_per_rank: int = 1
    """Compute threads of each rank of mpi, shared and gloo."""

    batch_sizes: tuple[int, ...] = (DEFAULT_BATCH_SIZE,)
    """Global batch sizes; the report treats each separately."""

    seeds: tuple[int, ...] = SEEDS
    """Seeds, with each of which every run is repeated, so that the report can give intervals."""

    full: bool = False
    """Use all samples, models, numbers of ranks and of threads."""

    epochs: int = EPOCHS
    """Passes over the training data; the first is not timed."""

    train_samples: int | None = None
    """Training samples per epoch. Default: 8,192 for the mlp, 1,024 for others (512 for the
    resnet), or all with --full."""

    validation_samples: int | None = None
    """Validation samples after each epoch. Default: 500, or all with --full."""

    lr: float = 1e-3
    """Learning rate."""

    program: str | None = None
    """A program that trains by phalanx.start with strategy="auto", and its arguments. Put options
    of the study before it: all that follows belongs to the program."""

    epoch_pattern: str | None = None
    """Regular expression of the line after an epoch, for a program without phalanx.start, e.g.
    "epoch.*loss (?P<loss>[0-9.]+)"; groups: seconds, loss, samples. Steps stay unknown."""

    def __post_init__(self) -> None:
        if self.epoch_pattern is not None and self.program is None:
            raise UserError("--epoch-pattern is for --program: give both")
        values = ("models", "strategies", "ranks", "nodes", "threads", "batch_sizes", "seeds")
        check_values(self, *values)


def runs_of(study: ScalingConfig, cores: int) -> list[TrainingRun]:
    """Every run of the study, in the order in which they are made: seed after seed, and those that
    are compared with each other one after the other, so that a machine that slows down slows all
    of them.

    Raises: UserError when an option does not fit (a batch smaller than the ranks).
    """
    return [
        _run_of(study, model, layout, batch_size, seed)
        for seed in study.seeds
        for model in models_of(study)
        for batch_size in study.batch_sizes
        for layout in layouts(study, cores)
    ]


def models_of(study: ScalingConfig) -> tuple[ModelName, ...]:
    return study.models or (FULL_MODELS if study.full else QUICK_MODELS)


class Layout(NamedTuple):
    """Spread of a run over ranks, threads and nodes."""

    strategy: StrategyName
    ranks: int
    threads: int
    """Threads of each rank."""
    hosts: str | None = None
    """Nodes of this run, as `--hosts` has them; None: those that its ranks fill."""

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.hosts is None else {HOSTS: self.hosts}

    @property
    def label(self) -> str:
        """Word of a run's name: 2t, 4x1, 4x1-2n."""
        if self.strategy == "sequential":
            return f"{self.threads}t"
        nodes = "" if self.hosts is None else f"-{self.hosts.count(',') + 1}n"
        return f"{self.ranks}x{self.threads}{nodes}"


def layouts(study: ScalingConfig, cores: int) -> Iterator[Layout]:
    """Yield the layouts of every model and batch size.

    Raises: UserError for nodes that there are not.
    """
    threads_of_one = powers_of_two(cores) if study.full else sorted({1, cores})
    ranks_of_many = powers_of_two(2 * cores) if study.full else sorted({2, max(2, cores)})
    for strategy in study.strategies:
        if strategy == "sequential":
            for threads in study.threads or threads_of_one:
                yield Layout(strategy, 1, threads)
        elif study.nodes:
            for ranks, hosts in spread(study.ranks, study.nodes, allocation(os.environ)):
                yield Layout(strategy, ranks, study.threads_per_rank, hosts)
        else:
            for ranks in study.ranks or ranks_of_many:
                yield Layout(strategy, ranks, study.threads_per_rank)


def spread(
    ranks: Sequence[int] | None, nodes: Sequence[int], granted: Allocation
) -> list[tuple[int, str]]:
    """Return numbers of ranks and the nodes of each, for all that can be spread evenly. Pure.

    Raises: UserError for a number of ranks or of nodes that no run would have.
    """
    there = len(granted.nodes) or 1
    if max(nodes) > there or not granted.nodes:
        raise UserError(
            f"--nodes {max(nodes)}: {there} {'is' if there == 1 else 'are'} given "
            f"({granted.source}): add nodes with --hosts n0:4,n1:4"
        )
    most = min(granted.slots)
    wanted = ranks or sorted({most * count for count in nodes})
    fit = {
        (number, count): found.hosts()
        for number in wanted
        for count in nodes
        if (found := granted.spread(number, count)) is not None
    }
    for option, numbers, used in (
        ("--ranks", wanted, {number for number, _ in fit}),
        ("--nodes", nodes, {count for _, count in fit}),
    ):
        unused = [number for number in numbers if number not in used]
        if unused:
            raise UserError(
                f"{option} {unused[0]}: no run can use it, since ranks are spread evenly over the "
                f"nodes, which have {', '.join(map(str, granted.slots))} slots"
            )
    return [(number, hosts) for (number, _), hosts in fit.items()]


def larger_study_hint(study: ScalingConfig, cores: int) -> str:
    """Return a hint to the options that the quick study leaves out."""
    seeds = len(study.seeds)
    numbers, gain = range(len(SEEDS)), "shows the variation between runs"
    if seeds > 1:
        numbers, gain = range(4 * seeds), "intervals less than half as wide"
    hint = f"for narrower intervals: `--seeds {' '.join(map(str, numbers))}` ({gain})"
    if study.full:
        return hint
    left = [f"the {model.upper()}" for model in FULL_MODELS if model not in models_of(study)]
    most = powers_of_two(2 * cores)[-1]
    return f"{hint}; for {', '.join(['all samples', *left, f'up to {most} ranks'])}: `--full`"


def powers_of_two(largest: int) -> list[int]:
    return [2**exponent for exponent in range(largest.bit_length())]


def _run_of(
    study: ScalingConfig,
    model: ModelName,
    layout: Layout,
    batch_size: int,
    seed: int,
) -> TrainingRun:
    samples = QUICK_TRAIN_SAMPLES.get(model, OTHER_TRAIN_SAMPLES)
    config = TrainConfig.from_options(
        **study.passed_on("epochs", "lr", "device"),
        model=model,
        strategy=layout.strategy,
        ranks=layout.ranks,
        threads=layout.threads,
        batch_size=batch_size,
        seed=seed,
        train_samples=study.train_samples or (None if study.full else samples),
        validation_samples=study.validation_samples
        or (None if study.full else QUICK_VALIDATION_SAMPLES),
    )
    config.global_batch_size()
    return TrainingRun(
        name=f"{model}-{layout.strategy}-{layout.label}-b{batch_size}-s{seed}",
        config=config,
        environment=layout.environment,
    )
