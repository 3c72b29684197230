"""Plans of tensor parallelism: names to styles, of the model or of the caller."""

import runpy
from pathlib import Path

import pytest
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from phalanx.errors import UserError
from phalanx.models.gpt import GPT
from phalanx.models.mlp import MLP
from phalanx.models.options import DataShape
from phalanx.parallel.tensor import check_sizes, pairs_of_children, tensor_plan_of

OWN = runpy.run_path(str(Path(__file__).parents[1] / "models" / "programs" / "own.py"))


def test_words_and_patterns_name_modules() -> None:
    table = tensor_plan_of(OWN["transformer"](vocabulary=5, context=4))
    firsts = [name for name, style in table.items() if isinstance(style, ColwiseParallel)]
    assert firsts == [
        *(f"layers.{n}.{layer}" for n in (0, 1) for layer in "qkv"),
        *(f"layers.{n}.up" for n in (0, 1)),
    ]
    seconds = [name for name, style in table.items() if isinstance(style, RowwiseParallel)]
    assert seconds == ["layers.0.o", "layers.1.o", "layers.0.down", "layers.1.down"]


def test_the_built_in_models_carry_theirs() -> None:
    assert list(tensor_plan_of(MLP())) == ["hidden1", "hidden2"]
    gpt = GPT(width=8, layers=2, heads=2, shape=DataShape(inputs=(8,)))
    plain, split = tensor_plan_of(gpt), tensor_plan_of(gpt, sequence_parallel=True)
    assert "block2.attention.query" in plain and "norm" not in plain
    assert plain.keys() < split.keys() and "norm" in split


def test_pairs_stay_together() -> None:
    model = OWN["tower"](inputs=(4,), num_classes=3)
    table = tensor_plan_of(model, OWN["tower_plan"])
    names = [name for name, _ in model.named_children()]
    assert pairs_of_children(names, table) == [["0"], ["1", "2", "3"], ["4"], ["5"], ["6"], ["7"]]
    assert pairs_of_children(names, {}) == [[name] for name in names]
    check_sizes(model, table, 3)
    with pytest.raises(UserError, match="1 has 12 outputs, which is not divisible by tp=5"):
        check_sizes(model, table, 5)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (None, "no plan for tensor parallelism: give its class `parallelize_plan`"),
        ({}, "is a mapping from names of modules to styles"),
        (OWN["plan_with_misprint"], "names one, which the model does not have; it has 0, 1, 2"),
        ({"1": "columns"}, "has 'columns' for 1: write column, row, sequence, or a style"),
        ({"2": "row"}, "splits 2 by rows, which is a Tanh"),
    ],
)
def test_what_a_plan_cannot_be(plan: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        tensor_plan_of(OWN["tower"](inputs=(4,), num_classes=3), plan)


def test_a_plan_that_splits_no_sequences_is_told() -> None:
    for model, plan in ((MLP(), None), (nn.Linear(2, 2), lambda: {"": "row"})):
        with pytest.raises(UserError, match=r"--sequence-parallel: the plan .* takes `sequence"):
            tensor_plan_of(model, plan, sequence_parallel=True)
