"""The formulas, by hand and by the sums that they must add up to; `test_truth.py` counts them."""

from dataclasses import replace

import pytest

from phalanx.records.events import ExpectedCosts
from phalanx.scratch.config import ScratchConfig, complete
from phalanx.scratch.expected import expected_of, num_parameters

PARAMETERS = 785 * 128 + 129 * 10
CONFIG = complete(ScratchConfig(ranks=4, dataset="digits"))


def of(rank: int = 0, **changes: object) -> ExpectedCosts:
    return expected_of(replace(CONFIG, **changes), rank, batch_size=128)  # type: ignore[arg-type]


def test_parameters() -> None:
    assert num_parameters((784, 128, 10)) == PARAMETERS == 101_770


def test_a_ring_that_divides() -> None:
    ring = of(hidden=(126,))  # 100,180 parameters
    assert ring.sent_bytes == ring.received_bytes == 2 * 3 / 4 * 4 * 100_180
    assert ring.state_bytes == 12 * 100_180
    assert (ring.traffic_formula, ring.state_formula) == ("2(p−1)/p · 4Ψ", "12Ψ")


@pytest.mark.parametrize("scheme", ["library", "ring"])
def test_what_is_sent_is_received(scheme: str) -> None:
    ranks = [of(rank, scheme=scheme, ranks=3) for rank in range(3)]
    sent = sum(rank.sent_bytes or 0 for rank in ranks)
    assert sent == sum(rank.received_bytes or 0 for rank in ranks)
    assert sent == 3 * 2 * 2 / 3 * 4 * PARAMETERS


def test_servers_share_what_one_would_carry() -> None:
    one = of(scheme="server", servers=1)
    assert one.sent_bytes == one.received_bytes == 3 * 4 * PARAMETERS
    assert one.state_bytes == 12 * PARAMETERS
    two = [of(rank, scheme="server", servers=2) for rank in range(4)]
    assert [rank.sent_bytes for rank in two[:2]] == [2 * 4 * PARAMETERS / 2] * 2
    assert [rank.sent_bytes for rank in two[2:]] == [4 * PARAMETERS] * 2
    assert [rank.state_bytes for rank in two] == [
        *[12 * PARAMETERS / 2] * 2,
        *[8 * PARAMETERS] * 2,
    ]


def test_tensor_moves_activations() -> None:
    pair = of(scheme="tensor")
    assert pair.sent_bytes == 2 * 3 / 4 * 4 * 128 * 10
    assert pair.traffic_formula == "2(p−1)/p · 4B · (10), B the batch"
    deeper = of(scheme="tensor", hidden=(128, 64, 32))
    assert deeper.sent_bytes == 2 * 3 / 4 * 4 * 128 * (64 + 64 + 10)
    odd = of(scheme="tensor", hidden=(128, 64))
    assert odd.sent_bytes == 2 * 3 / 4 * 4 * 128 * (64 + 64 / 2 + 10)
    assert odd.traffic_formula == "2(p−1)/p · 4B · (64 + 10 + 64/2), B the batch"
    assert odd.state_bytes == 12 * (785 * 32 + (32 + 1) * 64 + (16 + 1) * 10)


def test_alone_says_nothing() -> None:
    alone = of(scheme="alone", ranks=1, dtype="float64")
    assert (alone.sent_bytes, alone.received_bytes) == (0, 0)
    assert alone.state_bytes == 3 * 8 * PARAMETERS
