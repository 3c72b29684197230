"""An emulated link: what it is, and that it brings no message earlier than it says."""

import pytest

from phalanx.comm.link import Link
from phalanx.errors import UserError
from tests.conftest import Programs, Ranks, done


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("1Gbit/s,1ms", 125e6, 1e-3),
        ("100mbit/s", 12.5e6, 0.0),
        (" 2.5 ms , 10 kbit/s", 1250.0, 2.5e-3),
        ("20us", None, 20e-6),
        ("20µs", None, 20e-6),
    ],
)
def test_a_link_in_words(text: str, bandwidth: float | None, latency: float) -> None:
    link = Link.parse(text)
    assert link.bandwidth_bytes_per_s == pytest.approx(bandwidth)
    assert link.latency_s == pytest.approx(latency)


@pytest.mark.parametrize("text", ["", "fast", "1", "0ms", "-1ms", "1GB/s", "1ms,", "1.2.3ms", "."])
def test_words_that_are_no_link(text: str) -> None:
    with pytest.raises(UserError, match="neither a bandwidth nor a latency: use the form 1Gbit/s"):
        Link.parse(text)


@pytest.mark.parametrize("text", ["1ms,2ms", "1Gbit/s,1ms,2Gbit/s"])
def test_a_link_has_one_bandwidth_and_one_latency(text: str) -> None:
    with pytest.raises(UserError, match="give one bandwidth and one latency"):
        Link.parse(text)


def test_a_link_of_the_environment() -> None:
    assert Link.from_environment({}) is None
    assert Link.from_environment({"PHALANX_LINK": ""}) is None
    assert Link.from_environment({"PHALANX_LINK": "1ms"}) == Link(latency_s=1e-3)
    with pytest.raises(UserError, match="PHALANX_LINK: slow: 'slow' is neither"):
        Link.from_environment({"PHALANX_LINK": "slow"})


@pytest.mark.mpi
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.long), 3])
def test_nothing_arrives_earlier_than_the_link_says(
    ranks: Ranks, programs: Programs, count: int
) -> None:
    assert done(ranks.mpi(count, programs("link.py")), count)
