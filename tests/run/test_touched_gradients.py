"""Gradients that a program changes, keeps or drops."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ranks, long


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("num_ranks", "words"), [(3, "some"), long(2, "some"), long(2, "all"), long(3, "all")]
)
def test_touched_gradients_are_those_of_one_process(
    num_ranks: int, words: str, ranks: Ranks, programs: Callable[[str], Path]
) -> None:
    """Ranks of a node once shared the memory of the sums. PyTorch's SGD with nesterov and foreach
    adds to gradients in place: each rank added to those of all, and a linear layer's loss of 0.885
    on one rank was 46 and 115 on two. An optimizer that kept the last gradient had the new one. A
    fused optimizer paired the values of channels_last weights with those of other weights'
    gradients, and a gradient that PyTorch conjugates lazily was summed without that."""
    program = programs("touched_gradients.py")
    output = ranks.mpi(num_ranks, program, words, timeout_s=120 if words == "some" else 1800)
    assert len(re.findall(r"rank \d of \d: \d+ cases, 0 wrong", output)) == num_ranks
