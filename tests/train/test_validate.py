"""What does not fit is told with its numbers, before anything starts."""

import pytest

from phalanx.errors import UserError
from phalanx.models.options import DataShape
from phalanx.train.config import TrainConfig
from phalanx.train.validate import validate

IMAGES = DataShape()
TEXT = DataShape(inputs=(66,), num_classes=256)


def told(shape: DataShape, **options: object) -> str:
    """What the user is told of options that do not fit."""
    with pytest.raises(UserError) as caught:
        validate(TrainConfig.from_options(**options), shape)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"mesh": "dp=2,pp=2,tp=3", "ranks": 8},
            "pp(2) × dp(2) × shard(1) × tp(3) = 12, but there are 8 ranks",
        ),
        ({"strategy": "tensor", "ranks": 3}, "--width 256 is not divisible by tp=3"),
        ({"strategy": "tensor", "ranks": 2, "model": "cnn"}, "cannot be split by tensor"),
        ({"strategy": "pipeline", "ranks": 5}, "5 stages, but mlp has 3 layers to split between"),
        ({"strategy": "pipeline", "ranks": 2, "model": "cnn"}, "cannot be split into stages"),
        (
            {"mesh": "dp=4,pp=2", "ranks": 8, "micro_batches": 4, "batch_size": 15},
            "a global batch of 15 is less than 4 data ranks × 4 micro-batches = 16",
        ),
        ({"mesh": "shard=2", "ranks": 2, "zero_stage": 1}, "but shard=2 does"),
        (
            {"mesh": "dp=3", "ranks": 3, "batch_size": 2},
            "there are 3 ranks: give at least 3",
        ),
        ({"strategy": "server", "servers": 2, "ranks": 2}, "--servers 2 of 2 ranks leaves no"),
        ({"strategy": "pipeline", "ranks": 2, "accumulate": 2}, "--accumulate 2 and a pipeline"),
        (
            {"strategy": "shared", "ranks": 2, "optimizer": "lamb"},
            "--optimizer lamb needs norms of full layers, but --strategy shared updates slices",
        ),
        (
            {"strategy": "server", "ranks": 2, "clip_norm": 1.0},
            "--clip-norm 1 needs the norm of all gradients, but --strategy server updates slices",
        ),
        ({"ranks": 1, "momentum": 0.5}, "--momentum 0.5 means nothing"),
        ({"ranks": 1, "trust_coefficient": 0.1}, "--trust-coefficient 0.1 means nothing"),
        ({"ranks": 1, "warmup": "cosine"}, "--warmup cosine means nothing"),
        ({"ranks": 1, "lr_power": 1.0}, "--lr-power 1.0 means nothing"),
        ({"ranks": 1, "warmup_epochs": 9.0}, "--warmup-epochs 9 is the full run of 5 epochs"),
        (
            {"strategy": "pipeline", "ranks": 2, "pipeline_schedule": "1f1b", "micro_batches": 1},
            "1",
        ),
    ],
)
def test_images(options: dict[str, object], words: str) -> None:
    assert words in told(IMAGES, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "tensor", "ranks": 3}, "--heads 4 is not divisible by tp=3"),
        (
            {"strategy": "tensor", "ranks": 4, "sequence_parallel": True},
            "a text of 66 tokens is not divisible by tp=4",
        ),
        ({"strategy": "pipeline", "ranks": 8}, "8 stages, but gpt has 7 layers"),
        ({"strategy": "mpi", "ranks": 2, "width": 130}, "--width 130 does not divide by --heads 4"),
    ],
)
def test_text(options: dict[str, object], words: str) -> None:
    assert words in told(TEXT, model="gpt", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "mpi", "zero_stage": 2}, "--zero-stage 2 means nothing for --model mlp"),
        ({"mesh": "tp=2", "zero_stage": 2}, "--zero-stage 2 means nothing for --model mlp --mesh"),
        ({"strategy": "mpi", "backend": "gloo"}, "--backend gloo means nothing"),
        ({"strategy": "tensor", "sequence_parallel": True}, "--sequence-parallel means nothing"),
        ({"strategy": "zero", "sequence_parallel": True}, "it is for --model gpt with"),
        ({"mesh": "dp=2", "micro_batches": 4}, "--micro-batches 4 means nothing"),
        ({"strategy": "tensor", "pipeline_schedule": "gpipe"}, "--pipeline-schedule gpipe means"),
        ({"strategy": "mpi", "server_mode": "bounded"}, "it is for --strategy server"),
        ({"strategy": "mpi", "local_steps": 4}, "it is for --strategy local"),
        ({"strategy": "mpi", "restart_schedule": True}, "--restart-schedule means nothing"),
        ({"strategy": "mpi", "allow_changes": True}, "--allow-changes means nothing"),
        ({"strategy": "gloo", "all_reduce": "ring"}, "it is for --strategy mpi"),
        ({"strategy": "gloo", "compress": "int8"}, "--compress int8 means nothing for --model mlp"),
        ({"strategy": "mpi", "powersgd_rank": 2}, "it is for --compress powersgd"),
        (
            {"strategy": "mpi", "compress": "int8", "topk_fraction": 0.5},
            "it is for --compress topk",
        ),
        ({"strategy": "mpi", "compress": "bf16", "all_reduce": "ring"}, "that are not compressed"),
        ({"strategy": "pipeline", "autocast": "bf16"}, "it is for strategies and meshes without"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, object], words: str) -> None:
    assert words in told(IMAGES, ranks=2, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "zero", "zero_stage": 1, "ranks": 1},
        {"strategy": "zero", "zero_stage": 2, "ranks": 3, "backend": "gloo"},
        {"strategy": "tensor", "ranks": 2, "dtype": "float64"},
        {"mesh": "dp=2,tp=2,shard=2", "ranks": 8, "zero_stage": 2, "accumulate": 2},
        {"strategy": "pipeline", "ranks": 1, "micro_batches": 2},
        {"strategy": "pipeline", "ranks": 3, "pipeline_schedule": "gpipe"},
        {"strategy": "server", "ranks": 3, "servers": 2, "server_mode": "bounded", "staleness": 0},
        {"strategy": "mpi", "all_reduce": "ring", "ranks": 2},
        {"strategy": "mpi", "compress": "topk", "topk_fraction": 0.5, "ranks": 2},
        {"strategy": "tensor", "autocast": "bf16", "ranks": 2},
    ],
)
def test_what_fits_is_let_pass(options: dict[str, object]) -> None:
    validate(TrainConfig.from_options(**options), IMAGES)  # type: ignore[arg-type]
