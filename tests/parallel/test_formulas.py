"""What is written as a formula is what is counted."""

import pytest
import torch

from phalanx.comm.collectives.expected_traffic import P2PAlgorithm, expected_traffic
from phalanx.gradients.optimizer_update import OptimizerConfig
from phalanx.parallel.costs import Trained, all_reduce_formula, data_parallel_state


@pytest.mark.parametrize("name", ["naive", "direct", "ring", "halving"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_an_all_reduce_sends_what_its_formula_says(name: P2PAlgorithm, size: int) -> None:
    count = 4096
    for rank in range(size):
        text = all_reduce_formula(name, rank, size, 4).replace(" · ", "*").replace("−", "-")
        text = text.replace("2(", "2*(").replace("4Ψ", "4*n")
        assert (
            eval(text, {"p": size, "n": count})
            == expected_traffic(name, count, 4, rank, size).sent_bytes
        )


def test_others_than_powers_of_two_are_said_in_words() -> None:
    assert "q = 4" in all_reduce_formula("halving", 0, 6, 4)
    assert all_reduce_formula("tree", 0, 3, 8) == "8Ψ for each neighbour in the tree"


@pytest.mark.parametrize(
    ("rule", "text", "times"),
    [
        (OptimizerConfig(name="adam", learning_rate=1.0), "4Ψ + 4Ψ + 8Ψ", 4),
        (OptimizerConfig(name="sgd", learning_rate=1.0, momentum=0.9), "4Ψ + 4Ψ + 4Ψ", 3),
        (OptimizerConfig(name="sgd", learning_rate=1.0), "4Ψ + 4Ψ", 2),
    ],
)
def test_state_is_parameters_gradients_and_what_the_optimizer_keeps(
    rule: OptimizerConfig, text: str, times: int
) -> None:
    assert data_parallel_state(Trained.of([torch.zeros(100)], rule)) == (times * 400, text)
