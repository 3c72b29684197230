import pytest

from phalanx.records.totals import RankTotals, Validation, summarize

VALIDATION = Validation(samples=50, loss=0.5, accuracy=0.8, correct=40, seconds=0.1)
REST = {"epoch": 1, "samples": 128, "train_loss": 0.25, "trained_s": 3.0, "at_s": 9.0}


def totals(train_s: float, targets: int, correct: float) -> RankTotals:
    return RankTotals(
        train_s=train_s, communication_s=0.1 * train_s, targets=targets, correct=correct
    )


def test_uneven_ranks_add_up_to_the_global_values() -> None:
    ranks = [totals(2.0, 43, 40), totals(2.5, 43, 41), totals(2.4, 42, 42)]
    summary = summarize(ranks, VALIDATION, **REST)  # type: ignore[arg-type]
    assert summary.train_accuracy == pytest.approx(123 / 128)
    assert (summary.validation_loss, summary.validation_accuracy) == (0.5, 0.8)
    assert summary.epoch_s == 2.5  # of the slowest
    assert summary.trained_s == 5.5
    assert summary.images_per_s == pytest.approx(128 / 2.5)
    assert summary.communication_share == pytest.approx(0.1)


def test_an_epoch_that_nobody_has_evaluated() -> None:
    summary = summarize([totals(2.0, 43, float("nan"))], None, **REST)  # type: ignore[arg-type]
    assert summary.train_accuracy is None
    assert (summary.validation_loss, summary.validation_accuracy) == (None, None)


def test_the_share_of_communication_is_that_of_ranks_that_make_steps() -> None:
    worker, server = totals(2.0, 10, 5), totals(2.0, 0, 0)._replace(steps=0)
    server = server._replace(communication_s=0.0)
    summary = summarize([server, worker], None, **REST)  # type: ignore[arg-type]
    assert summary.communication_share == pytest.approx(0.1)
