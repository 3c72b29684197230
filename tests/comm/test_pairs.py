"""Rounds in which all pairs of ranks meet."""

from itertools import chain, combinations

import pytest

from phalanx.comm.pairs import best_of_pairs, pair_rounds, slow_pairs


@pytest.mark.parametrize("size", range(1, 10))
def test_every_pair_meets_once(size: int) -> None:
    rounds = pair_rounds(size)
    assert sorted(chain.from_iterable(rounds)) == list(combinations(range(size), 2))
    for pairs in rounds:
        ranks = list(chain.from_iterable(pairs))
        assert len(ranks) == len(set(ranks))
    assert len(rounds) <= size


def test_a_pair_that_was_disturbed_is_measured_again() -> None:
    found = [(0, 1, 4e-3, 9e7), (0, 2, 1e-5, 3e9), (1, 2, 1e-5, 3e9)]
    assert slow_pairs(found) == [(0, 1)]
    assert best_of_pairs([*found, (0, 1, 1e-5, 2e9)])[0] == (0, 1, 1e-5, 2e9)
    assert slow_pairs(found[1:]) == slow_pairs([]) == []
