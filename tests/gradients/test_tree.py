"""Sums in the order of a fixed tree do not depend on who adds what."""

import random
from fractions import Fraction

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.comm import kernels
from phalanx.comm.dtypes import DTYPES, dtype_of
from phalanx.comm.layout import share_of
from phalanx.gradients.division import Division
from phalanx.gradients.summation_tree import SummationTree, schedule_exchange
from phalanx.gradients.tree_reducer import TreeReducer
from phalanx.gradients.tree_vector import evaluate
from phalanx.parallel.run_group import RunGroup
from phalanx.run.evaluation import sum_of, sum_over_ranks

AT_ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Of a machine with other work."""


@st.composite
def divisions(draw) -> tuple[int, list[int], list[list[int]]]:
    """Number of leaves, those with samples, and the leaves of each rank, in any order."""
    num_leaves = draw(st.integers(1, 40))
    leaves = sorted(draw(st.sets(st.integers(0, num_leaves - 1), min_size=1)))
    num_ranks = draw(st.integers(1, num_leaves))
    if draw(st.booleans()):
        owners = [list(share_of(rank, num_ranks, num_leaves)) for rank in range(num_ranks)]
    else:  # as after the loss of ranks
        owners = [[] for _ in range(num_ranks)]
        ranks = st.integers(0, num_ranks - 1)
        drawn = draw(st.lists(ranks, min_size=num_leaves, max_size=num_leaves))
        for leaf, rank in zip(draw(st.permutations(range(num_leaves))), drawn, strict=True):
            owners[rank].append(leaf)
    return num_leaves, leaves, owners


@AT_ANY_SPEED
@given(divisions(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_the_sum_does_not_depend_on_the_ranks(division, dtype: torch.dtype) -> None:
    num_leaves, leaves, owners = division
    torch.manual_seed(num_leaves)
    values = {
        leaf: torch.randn(7).to(dtype) * 10 ** random.Random(leaf).uniform(-3, 3) for leaf in leaves
    }

    def partial(own: list[int]) -> dict:
        parameter = torch.zeros(7, dtype=dtype)
        reducer = TreeReducer([parameter], (), Division(num_leaves, 1), None)
        reducer.begin_step(leaves)
        for leaf in own:
            if leaf in values:
                parameter.grad = values[leaf].clone()
                reducer.add(leaf, 1.0, (0.0, 0.0, 0.0), ())
        return {node: gradients for node, (_, *gradients) in reducer._sums.items()}

    exchange = schedule_exchange(tuple(map(tuple, owners)), frozenset(leaves), num_leaves)
    terms = []
    for own, nodes in zip(owners, exchange.nodes, strict=True):
        sums = partial(own)
        assert sorted(sums) == sorted(nodes), "the schedule is what is held"
        terms += [sums[node][0] for node in nodes]
    (whole,) = partial(leaves).values()
    assert torch.equal(evaluate(terms, exchange.expression), whole[0])


TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("num_terms", [1, 2, 7, 12])
def test_kernels_add_as_torch_does(dtype: torch.dtype, num_terms: int) -> None:
    """Also denormal numbers, infinities, and sums that round to them."""
    owners = tuple((leaf,) for leaf in range(num_terms))
    exchange = schedule_exchange(owners, frozenset(range(num_terms)), num_terms)
    limits, module = torch.finfo(dtype), kernels.compiled()
    numbers = torch.tensor([0.0, limits.tiny / 8, 1.0, limits.max, -limits.max / 2, torch.inf])
    torch.manual_seed(num_terms)
    for count in (1, 63, 9000):
        draws = numbers[torch.randint(len(numbers), (num_terms, count))]
        terms = list((torch.randn(num_terms, count, dtype=torch.float64) * draws).to(dtype))
        found, windows = torch.empty(count, dtype=dtype), torch.empty(num_terms, count, dtype=dtype)
        size = count * dtype.itemsize
        arguments = (num_terms, size, size, [0], [size], DTYPES["uint8"].code, False)
        carried = torch.zeros(2, dtype=torch.float64)
        memory = windows.data_ptr()
        buffer = module.make_grad_buffer(None, 0, 1, memory, *arguments, carried.data_ptr())
        expression = [num_terms if item == -1 else item for item in exchange.expression]
        addresses = [term.data_ptr() for term in terms]
        types, order = [dtype_of(dtype).code], (0, num_terms, num_terms, expression)
        arguments = (addresses, types, found.data_ptr(), *order, 1.0)
        status = module.grad_buffer_sum_in_order(buffer, *arguments)
        expected = evaluate(terms, exchange.expression)
        assert (status != module.NOT_FINITE) == bool(expected.isfinite().all())
        nan = expected.isnan()
        assert torch.equal(found.isnan(), nan)
        assert torch.equal(found[~nan].view(torch.uint8), expected[~nan].view(torch.uint8))


@pytest.mark.skipif(kernels.compiled() is None, reason="no C kernels were built")
@pytest.mark.parametrize("expression", [[], [0, 1], [2], [0, 2], [0, 1, 2, 2], [3], [0] * 99])
def test_what_is_no_expression_is_refused(expression: list[int]) -> None:
    module, term = kernels.compiled(), torch.ones(3)
    carried = torch.zeros(2, dtype=torch.float64)
    arguments = (term.data_ptr(), 2, 12, 3, [0], [3], 0, False, carried.data_ptr())
    buffer = module.make_grad_buffer(None, 0, 1, *arguments)
    with pytest.raises(ValueError, match="no order of a sum of 2 terms"):
        module.grad_buffer_sum_in_order(
            buffer, [term.data_ptr()] * 2, [0], term.data_ptr(), 0, 2, 2, expression, 1.0
        )


def test_the_tree_of_six_is_that_of_four_and_two() -> None:
    tree = SummationTree(range(6), 6)
    nodes = tree.subtrees([0, 1, 2, 3]), tree.subtrees([4, 5])
    assert [len(own) for own in nodes] == [1, 1]
    assert tree.expression([*nodes[0], *nodes[1]]) == [0, 1, -1]
    assert [node.level for node in tree.subtrees([1, 2, 3])] == [0, 1]


@pytest.mark.parametrize("owners", [[[0, 1]], [[0, 1, 2], [2, 3]]])
def test_nodes_that_miss_or_repeat_a_leaf_are_refused(owners: list[list[int]]) -> None:
    tree = SummationTree(range(4), 4)
    with pytest.raises(ValueError, match="cover"):
        tree.expression([node for own in owners for node in tree.subtrees(own)])


@AT_ANY_SPEED
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32)), st.randoms())
def test_an_exact_sum_has_no_order(values: list[float], shuffled: random.Random) -> None:
    other = list(values)
    shuffled.shuffle(other)
    expected = float(sum(map(Fraction, values), Fraction(0)))
    assert sum_of(values) == sum_of(other) == expected
    assert sum_over_ranks(RunGroup(), [other, []]) == [expected, 0.0]


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_an_exact_sum_keeps_what_is_not_finite(bad: float) -> None:
    found = sum_of([1.0, bad, 2.0])
    assert str(found) == str(bad)
