"""Random collectives against Gloo's, on ranks whose surroundings differ at random."""

from pathlib import Path

import pytest

from tests.conftest import Programs, Ranks, done

pytestmark = pytest.mark.mpi


def fuzz(ranks: Ranks, program: Path, count: int, seed: int, calls: int, timeout_s: float) -> None:
    output = ranks.mpi(count, program, str(seed), str(calls), timeout_s=timeout_s)
    assert f"{calls} calls on {count} ranks" in output
    assert done(output, count)


def test_random_calls(ranks: Ranks, programs: Programs) -> None:
    """Three rounds, in one of which all ranks are told that their variables differ."""
    fuzz(ranks, programs("fuzz.py"), count=3, seed=1, calls=1500, timeout_s=110)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("count", "seed"), [(2, 2), (3, 3), (3, 4), (4, 5)])
def test_a_hundred_thousand_random_calls(
    ranks: Ranks, programs: Programs, count: int, seed: int
) -> None:
    fuzz(ranks, programs("fuzz.py"), count, seed, calls=25_000, timeout_s=3500)
