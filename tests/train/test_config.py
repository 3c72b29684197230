from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import UserError
from phalanx.jobs.binding import THREAD_POOLS
from phalanx.jobs.detect import Launched
from phalanx.train.config import TrainConfig
from phalanx.train.run import complete


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": 0}, "--ranks must be at least 1, not 0"),
        ({"epochs": 0}, "--epochs must be at least 1, not 0"),
        ({"batch_size": 0}, "--batch-size must be at least 1, not 0"),
        ({"lr": 0.0}, "--lr must be positive, not 0.0"),
        ({"lr": float("nan")}, "--lr must be positive, not nan"),
        ({"momentum": -1.0}, "--momentum must not be negative, not -1.0"),
        ({"batch_size": 8, "per_rank_batch_size": 4}, "exclude each other"),
        ({"strategy": "sequential", "ranks": 2}, "use --strategy mpi --ranks 2"),
    ],
)
def test_bad_options_are_named_with_their_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        TrainConfig.from_options(**options)


def of_ranks(number: int, **options: Any) -> TrainConfig:
    return TrainConfig.from_options(strategy="mpi", ranks=number, **options)


def test_a_batch_smaller_than_the_ranks_is_refused() -> None:
    with pytest.raises(UserError, match="--batch-size 2 is the global batch size, but there are 3"):
        of_ranks(3, batch_size=2).global_batch_size()


def test_the_global_batch_is_what_batch_size_means() -> None:
    assert of_ranks(4).global_batch_size() == 128
    assert of_ranks(4, batch_size=256).global_batch_size() == 256
    assert of_ranks(4, per_rank_batch_size=32).global_batch_size() == 128


def test_text_has_smaller_batches() -> None:
    """A sample of it asks for 64 predictions."""
    assert of_ranks(4, model="gpt").global_batch_size() == 32
    assert of_ranks(4, model="gpt", batch_size=128).global_batch_size() == 128
    assert TrainConfig.from_options(model="gpt", lr=0.1, lr_rule="linear").learning_rate(64) == 0.2


@pytest.mark.parametrize(("rule", "expected"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_learning_rate_rules(rule: Any, expected: float) -> None:
    assert TrainConfig.from_options(lr=0.1, lr_rule=rule).learning_rate(512) == pytest.approx(
        expected
    )


def test_options_survive_the_record() -> None:
    config = TrainConfig.from_options(model="cnn", data_root=Path("a/b"), strategy="gloo", ranks=3)
    assert TrainConfig.from_record(config.as_record()) == config


@pytest.mark.parametrize(
    ("strategy", "launched", "threads"),
    [
        ("mpi", None, None),  # each rank counts the cores of its own node
        ("gloo", None, 4),  # processes of this node
        ("gloo", Launched(launcher="slurm", rank=0, world_size=2), 8),
        ("mpi", Launched(launcher="slurm", rank=0, world_size=2, local_world_size=1), 8),
    ],
)
def test_threads_in_an_allocation_of_two_nodes(
    monkeypatch: pytest.MonkeyPatch, strategy: Any, launched: Launched | None, threads: int | None
) -> None:
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    for name in THREAD_POOLS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("phalanx.jobs.binding.usable_cores", lambda: 8)
    monkeypatch.setattr("phalanx.jobs.ranks.cores_of_rank", lambda local, _: 8 // local)
    asked = TrainConfig.from_options(strategy=strategy, ranks=2, dataset="digits")
    assert complete(asked, launched)[0].threads == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # a launcher's own, where there is one
    assert complete(asked, launched)[0].threads == (threads if launched else 3)
