"""Accuracy on MNIST after five epochs: the same for every strategy, and the CNN's is 99 %."""

from pathlib import Path

import pytest
from rich.console import Console

from phalanx.models.options import ModelName
from phalanx.records.files import read_events
from phalanx.records.schema import Summary
from phalanx.train.config import TrainConfig
from phalanx.train.job import run_job
from phalanx.train.run import complete
from phalanx.train.split import Strategy

MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not MNIST.is_dir(), reason="there is no copy of MNIST beside the repository"
    ),
]


def accuracy(folder: Path, model: ModelName, strategy: Strategy, ranks: int, seed: int) -> float:
    config, _ = complete(
        TrainConfig(
            model=model,
            strategy=strategy,
            ranks=ranks,
            seed=seed,
            dataset="mnist",
            data_root=MNIST,
        ),
        None,
    )
    run_job(config, folder, study="test", command=["test"], console=Console(quiet=True))
    *_, last = (e for e in read_events(folder / "rank-0.jsonl") if isinstance(e, Summary))
    assert last.epoch == 4
    return last.validation_accuracy


@pytest.mark.parametrize(("model", "least"), [("mlp", 0.97), ("cnn", 0.99), ("rnn", 0.975)])
def test_accuracy_does_not_depend_on_the_layout(
    tmp_path: Path, model: ModelName, least: float
) -> None:
    alone = [accuracy(tmp_path / f"alone-{s}", model, "sequential", 1, s) for s in range(3)]
    layouts: list[tuple[Strategy, int]] = [("mpi", 2), ("mpi", 3), ("mpi", 4), ("gloo", 2)]
    spread = max(alone) - min(alone)
    assert min(alone) >= least
    for strategy, ranks in layouts:
        found = accuracy(tmp_path / f"{strategy}-{ranks}", model, strategy, ranks, 0)
        # Five epochs in float32 amplify the rounding of another summation order about as much as
        # another seed changes the outcome; samples counted in thousandths are the least margin.
        assert min(alone) - max(spread, 0.002) <= found, (strategy, ranks, found, alone)
        assert found <= max(alone) + max(spread, 0.002), (strategy, ranks, found, alone)
