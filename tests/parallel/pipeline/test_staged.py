"""The strategy of stages on real ranks, and what is refused before any is started."""

from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.models.options import MNIST_SHAPE, DataShape
from phalanx.train.config import TrainConfig
from phalanx.train.validate import validate
from tests.conftest import Ranks


@pytest.mark.mpi
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("count", "words"),
    [
        (2, ("pp=2/interleaved", "pp=2/zero-bubble")),
        (4, ("pp=2,dp=2/1f1b", "pp=2,tp=2/1f1b")),
        pytest.param(
            4,
            ("pp=2,shard=2/interleaved", "pp=2,tp=2/gpipe/sequence"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            8,
            (
                *("pp=2,dp=2,tp=2/1f1b", "pp=2,dp=4/1f1b", "pp=2,shard=4/1f1b"),
                *("pp=2,shard=2,dp=2/1f1b", "pp=2,shard=2,tp=2/1f1b", "pp=4,dp=2/1f1b"),
                *("pp=4,tp=2/gpipe", "pp=4,shard=2/interleaved", "pp=8/1f1b"),
            ),
            marks=pytest.mark.long,
        ),
    ],
)
def test_one_process_is_the_truth(
    ranks: Ranks, programs: Callable[[str], Path], count: int, words: tuple[str, ...]
) -> None:
    output = ranks.mpi(count, programs("staged.py"), *words, timeout_s=200)
    assert output.count("a rank is done") == count


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": "cnn", "ranks": 2}, "cnn cannot be split into stages"),
        ({"ranks": 4}, "4 stages, but mlp has 3 layers to split between .* fewer ranks or stages$"),
        (
            {"ranks": 2, "pipeline_schedule": "interleaved"},
            "pp=2 with 2 stages per rank are 4 stages, but mlp has 3 layers",
        ),
        ({"ranks": 3, "micro_batches": 2}, "1f1b needs a micro-batch for each of its 3 ranks"),
        ({"ranks": 2, "accumulate": 2}, "--accumulate 2 and a pipeline exclude each other"),
        (
            {"mesh": "pp=3,tp=2", "ranks": 6, "strategy": "mesh"},
            r"mlp has 2 layers to split between \(hidden1 to hidden2, output\)",
        ),
        (
            {
                "mesh": "pp=2,shard=2",
                "ranks": 4,
                "strategy": "mesh",
                "model": "gpt",
                "pipeline_schedule": "zero-bubble",
            },
            "shard=2 and --pipeline-schedule zero-bubble exclude each other",
        ),
    ],
)
def test_what_does_not_fit(options: dict, text: str) -> None:
    config = TrainConfig.from_options(**{"strategy": "pipeline", **options})
    shape = DataShape(inputs=(64,), num_classes=64) if config.model == "gpt" else MNIST_SHAPE
    with pytest.raises(UserError, match=text):
        validate(config, shape)
