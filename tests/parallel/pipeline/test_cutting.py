"""Cuts that cost alike, against every cut there is."""

from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.parallel.pipeline.cutting import cut_evenly

Chain = tuple[list[float], list[bool], int]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    costs = draw(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=9))
    has_parameters = [draw(st.booleans()) for _ in costs]
    has_parameters[draw(st.integers(0, len(costs) - 1))] = True
    return costs, has_parameters, draw(st.integers(1, sum(has_parameters)))


def all_cuts(layers: int, stages: int) -> Iterator[list[range]]:
    for ends in combinations(range(1, layers), stages - 1):
        borders = (0, *ends, layers)
        yield [range(*pair) for pair in pairwise(borders)]


@given(chains())
def test_no_cut_is_better(chain: Chain) -> None:
    costs, has_parameters, stages = chain

    def highest(cut: list[range]) -> float:
        return max(sum(costs[layer] for layer in stage) for stage in cut)

    def fits(cut: list[range]) -> bool:
        return all(any(has_parameters[layer] for layer in stage) for stage in cut)

    cut = cut_evenly(costs, has_parameters, stages)
    assert [layer for stage in cut for layer in stage] == list(range(len(costs)))
    assert len(cut) == stages
    assert fits(cut)
    assert highest(cut) == min(highest(c) for c in all_cuts(len(costs), stages) if fits(c))


def test_mlp() -> None:
    """flatten hidden1 | relu1 hidden2 | relu2 output: what is left is cut as evenly again."""
    has_parameters = [False, True, False, True, False, True]
    cut = cut_evenly([0.1, 10.0, 0.5, 2.0, 0.2, 1.0], has_parameters, 3)
    assert [list(stage) for stage in cut] == [[0, 1], [2, 3], [4, 5]]


def test_gpt() -> None:
    """The head is as dear as half a block: two blocks on either side."""
    costs = [0.2, 1.0, 1.0, 1.0, 1.0, 0.05, 0.5]
    cut = cut_evenly(costs, [True] * 7, 2)
    assert [list(stage) for stage in cut] == [[0, 1, 2], [3, 4, 5, 6]]


def test_too_many_stages() -> None:
    with pytest.raises(UserError, match="4 stages, but the model 3 layers"):
        cut_evenly([1.0] * 6, [False, True, False, True, False, True], 4)
