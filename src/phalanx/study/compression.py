"""The compression study: one training with every way to send gradients, in this node's memory and
on emulated links. Pure; making the runs is `execute`'s work.

Accuracy does not depend on where bytes go: runs over the seeds are made in memory, whole trainings.
On links a few steps tell the time of one.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.comm.link import Link
from phalanx.errors import UserError
from phalanx.models.options import MNIST_SHAPE
from phalanx.parallel.options import Compression, Overlap
from phalanx.records.configuration import check_counts, check_values
from phalanx.study.options import StudyOptions
from phalanx.study.run import COUNT, TrainingRun
from phalanx.train.config import TrainConfig

LEAST_STEPS = 8
LINK_RUN_S = 10.0
"""Uncompressed steps on a slow link are as many as about so much time takes, and at least
LEAST_STEPS."""


@dataclass(frozen=True, kw_only=True)
class CompressionConfig(StudyOptions):
    """Options of the compression study. The defaults take some ten minutes on two cores."""

    compressors: tuple[Compression, ...] = ("none", "fp16", "bf16", "int8", "powersgd", "topk")
    """Ways to send gradients. Those after `none` are held to it."""

    links: tuple[str, ...] = ("10Gbit/s", "1Gbit/s", "100Mbit/s")
    """Links to emulate, as bandwidth, or as 1Gbit/s,1ms with a latency. This node's memory is
    always measured."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Whole trainings with each seed tell accuracy and its spread."""

    ranks: int = 2
    """Ranks of every run."""

    width: int = 1_024
    """Hidden units of the `mlp` that is trained: the wider, the more gradients for its work."""

    batch_size: int = 32
    """Global batch size, summed over all ranks: the smaller, the less work for its gradients."""

    epochs: int = 3
    """Passes over the training data."""

    train_samples: int = 8_192
    """Training samples of an epoch."""

    validation_samples: int = 2_000
    """Validation samples that each epoch is judged by."""

    lr: float = 0.02
    """Learning rate of SGD with momentum 0.9."""

    steps: int = 40
    """Steps of a run on a link, fewer where a step takes long."""

    overlap: Overlap = "off"
    """Overlap of sums with the backward pass. `off` makes a step the sum of computing, coding
    and sending, which is what the bandwidth at which a compressor pays is computed by."""

    powersgd_rank: int = 4
    """`powersgd`: columns of the factors."""

    topk_fraction: float = 0.01
    """`topk`: part of the values that is sent."""

    def __post_init__(self) -> None:
        check_values(self, "compressors", "seeds", *(["links"] if self.links else []))
        for link in self.links:
            if Link.parse(link).bandwidth_bytes_per_s is None:
                raise UserError(f"--links {link} has no bandwidth: use the form 1Gbit/s,1ms")
        if self.ranks < 2:
            raise UserError(f"--ranks must be at least 2, not {self.ranks}: one rank sends nothing")
        check_counts(self, LEAST_STEPS, "steps")


def runs_of(study: CompressionConfig) -> list[TrainingRun]:
    """Every run, in the order in which they are made: those that are compared one after the other,
    so that a machine that slows down slows all of them."""
    runs = [
        TrainingRun(
            name=f"memory-{compressor}-s{seed}",
            config=_config(study, compressor, seed=seed),
            environment=COUNT,
        )
        for seed in study.seeds
        for compressor in study.compressors
    ]
    runs += [
        TrainingRun(
            name=f"{_word(link)}-{compressor}",
            config=_config(study, compressor, seed=study.seeds[0], link=link),
            environment=COUNT,
        )
        for link in study.links
        for compressor in study.compressors
    ]
    return runs


def steps_on(study: CompressionConfig, link: str) -> int:
    """Steps of a run on `link`, the same for all compressors."""
    bandwidth = Link.parse(link).bandwidth_bytes_per_s
    assert bandwidth is not None, "checked where the options are made"
    sent_bytes = 4 * num_parameters(study.width) * 2 * (study.ranks - 1) / study.ranks
    return max(LEAST_STEPS, min(study.steps, int(LINK_RUN_S * bandwidth / sent_bytes)))


def num_parameters(width: int) -> int:
    """Return the parameters of the `mlp` on images of the size of MNIST's."""
    inputs, outputs, half = 1, MNIST_SHAPE.num_classes, max(1, width // 2)
    for size in MNIST_SHAPE.inputs:
        inputs *= size
    return (inputs + 1) * width + (width + 1) * half + (half + 1) * outputs


def _config(
    study: CompressionConfig, compressor: Compression, *, seed: int, link: str | None = None
) -> TrainConfig:
    """link: None for a whole training in memory."""
    own: dict[str, float] = {}
    if compressor == "powersgd":
        own["powersgd_rank"] = study.powersgd_rank
    if compressor == "topk":
        own["topk_fraction"] = study.topk_fraction
    steps = None if link is None else steps_on(study, link)
    return TrainConfig.from_options(
        **study.passed_on("width", "ranks", "lr", "batch_size", "overlap"),
        model="mlp",
        strategy="mpi",
        threads=1,
        optimizer="sgd",
        seed=seed,
        epochs=study.epochs if steps is None else 1,
        train_samples=study.train_samples if steps is None else steps * study.batch_size,
        validation_samples=study.validation_samples if steps is None else study.batch_size,
        compress=compressor,
        link=link,
        **own,
    )


def _word(link: str) -> str:
    """Return a word for the name of a folder."""
    return "".join(letter if letter.isalnum() else "-" for letter in link)
