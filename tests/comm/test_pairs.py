"""Rounds in which all pairs of ranks meet."""

from itertools import chain, combinations

import pytest

from phalanx.comm.pairs import pair_rounds


@pytest.mark.parametrize("size", range(1, 10))
def test_every_pair_meets_once(size: int) -> None:
    rounds = pair_rounds(size)
    assert sorted(chain.from_iterable(rounds)) == list(combinations(range(size), 2))
    for pairs in rounds:
        ranks = list(chain.from_iterable(pairs))
        assert len(ranks) == len(set(ranks))
    assert len(rounds) <= size
