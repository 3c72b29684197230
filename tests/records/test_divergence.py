"""A loss that is not finite is printed as such, however many targets its sum is divided by."""

import math

import pytest

from phalanx.records.divergence import UNBOUNDED, loss_text, mean_loss, recorded_loss


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stays_so(loss: float) -> None:
    assert recorded_loss(loss) == UNBOUNDED
    assert mean_loss(recorded_loss(loss) + 12.5, 20) == UNBOUNDED, "not 5e28"
    assert loss_text(mean_loss(recorded_loss(loss), 20)) == "nan"


def test_others_are_means() -> None:
    assert mean_loss(recorded_loss(10.0), 20) == 0.5
    assert loss_text(0.5) == "0.5000"
    assert loss_text(2.5e7) == "2.5e+07"
    assert mean_loss(0.0, 0) == UNBOUNDED
