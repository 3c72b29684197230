"""A run of as many steps as one asks for."""

import pytest

from phalanx.errors import UserError
from phalanx.train.config import TrainConfig
from phalanx.train.run import VALIDATION_SAMPLES, few_steps

DIGITS = TrainConfig.from_options(dataset="digits", strategy="mpi", ranks=2)


def test_one_epoch_of_as_many_samples() -> None:
    short = few_steps(DIGITS, 20)
    assert short.trace
    assert (short.epochs, short.train_samples) == (1, 20 * 128)
    assert short.validation_samples == VALIDATION_SAMPLES


def test_epochs_where_there_are_fewer_samples() -> None:
    short = few_steps(TrainConfig.from_options(dataset="digits", train_samples=300, ranks=1), 20)
    assert (short.epochs, short.train_samples) == (9, 300)
    whole = few_steps(DIGITS, 1_000)
    assert (whole.epochs, whole.train_samples) == (3, 60_000)


def test_a_batch_that_grows_with_the_ranks() -> None:
    config = TrainConfig.from_options(
        dataset="digits", strategy="mpi", ranks=2, per_rank_batch_size=16
    )
    assert few_steps(config, 5).train_samples == 5 * 32


@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps(steps: int) -> None:
    with pytest.raises(UserError, match=f"--steps must be at least 1, not {steps}"):
        few_steps(DIGITS, steps)
