"""The arithmetic of the shared all-reduce, without MPI."""

import numpy as np
import pytest

from phalanx.gradients.shared_grad_buffer import sum_in_order


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_sums_are_made_in_the_order_of_the_terms(size: int) -> None:
    rng = np.random.default_rng(size)
    terms = [rng.standard_normal(1001).astype(np.float32) for _ in range(size)]
    copies = [term.copy() for term in terms]
    expected = terms[0]
    for term in terms[1:]:
        expected = expected + term  # the order is part of the promise: float sums depend on it
    total = np.empty(1001, np.float32)
    sum_in_order(terms, total)
    assert total.tobytes() == expected.tobytes()
    assert all(np.array_equal(a, b) for a, b in zip(terms, copies, strict=True))
