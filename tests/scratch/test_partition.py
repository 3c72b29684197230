"""Which parts of a network's weights are on which rank, and that they make up the whole."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scratch.partition import partition_layers
from phalanx.scratch.schemes.tensor import assemble


def test_layers_are_cut_in_pairs() -> None:
    """As it is drawn in the guide: columns, rows, columns, rows."""
    kinds = {
        (8, 8): ["rows of whole inputs"],
        (8, 8, 8): ["columns", "rows"],
        (8, 8, 8, 8): ["columns", "rows", "rows of whole inputs"],
        (8, 8, 8, 8, 8): ["columns", "rows", "columns", "rows"],
    }
    for sizes, expected in kinds.items():
        assert [cut.kind for cut in partition_layers(sizes, 2)] == expected


def test_the_cut_of_a_pair() -> None:
    first, second = partition_layers((784, 7, 10), 3)
    assert [list(first.columns(rank)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert [list(second.rows(rank)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert list(first.rows(1)) == list(range(784))
    assert list(second.columns(1)) == list(range(10))
    assert [first.size(rank) for rank in range(3)] == [785 * 2, 785 * 2, 785 * 3]
    assert [second.size(rank) for rank in range(3)] == [3 * 10, 3 * 10, 4 * 10]


@given(st.lists(st.integers(5, 12), min_size=2, max_size=6), st.integers(1, 5))
def test_the_parts_make_up_the_whole(sizes: list[int], ranks: int) -> None:
    layers = partition_layers(sizes, ranks)
    widths = list(itertools.pairwise(sizes))
    whole = np.arange(sum((inputs + 1) * outputs for inputs, outputs in widths), dtype=np.float64)
    held = []
    for rank in range(ranks):
        parts, start = [], 0
        for cut in layers:
            columns = cut.columns(rank)
            weight = whole[start : start + cut.inputs * cut.outputs]
            bias = whole[start + weight.size : start + weight.size + cut.outputs]
            matrix = weight.reshape(cut.inputs, cut.outputs)
            parts.append(matrix[np.ix_(cut.rows(rank), columns)].ravel())
            parts.append(bias[columns.start : columns.stop])
            start += weight.size + bias.size
        held.append(np.concatenate(parts))
        assert held[-1].size == sum(cut.size(rank) for cut in layers)
    np.testing.assert_array_equal(assemble(layers, held), whole)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_rank_gets_something(ranks: int) -> None:
    for cut in partition_layers((784, 8, 8, 8, 10), ranks):
        assert all(len(cut.rows(rank)) and len(cut.columns(rank)) for rank in range(ranks))
