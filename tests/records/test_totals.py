from dataclasses import replace

import pytest

from phalanx.records.totals import RankTotals, summarize


def totals(train_s: float, samples: int, loss_sum: float, correct: int) -> RankTotals:
    return RankTotals(
        train_s=train_s,
        communication_s=0.1 * train_s,
        samples=samples,
        loss_sum=loss_sum,
        correct=correct,
        targets=samples,
        validation_targets=samples,
        validation_loss_sum=2 * loss_sum,
        validation_correct=correct // 2,
    )


def test_uneven_ranks_add_up_to_the_global_values() -> None:
    ranks = [totals(2.0, 43, 10.0, 40), totals(2.5, 43, 20.0, 41), totals(2.4, 42, 2.0, 42)]
    summary = summarize(ranks, epoch=1, trained_s=3.0, at_s=9.0)
    assert summary.train_loss == pytest.approx(32 / 128)
    assert summary.train_accuracy == pytest.approx(123 / 128)
    assert summary.validation_loss == pytest.approx(64 / 128)
    assert summary.validation_accuracy == pytest.approx((20 + 20 + 21) / 128)
    assert summary.epoch_s == 2.5  # of the slowest
    assert summary.trained_s == 5.5
    assert summary.images_per_s == pytest.approx(128 / 2.5)
    assert summary.communication_share == pytest.approx(0.1)


def test_the_share_of_communication_is_that_of_ranks_that_make_steps() -> None:
    worker, server = totals(2.0, 10, 1.0, 5), replace(totals(2.0, 0, 0.0, 0), steps=0)
    server = replace(server, communication_s=0.0)
    summary = summarize([server, worker], epoch=0, trained_s=0.0, at_s=2.0)
    assert summary.communication_share == pytest.approx(0.1)


def test_totals_travel_as_numbers() -> None:
    one = totals(1.0, 2, 3.0, 2)
    assert RankTotals.from_values(one.values()) == one
