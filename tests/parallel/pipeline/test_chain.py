"""A model as a chain of layers, under the names that they have in it."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from phalanx.errors import UserError
from phalanx.parallel.pipeline.chain import Chain, join_stages, layers_of, stage_of
from phalanx.parallel.sharding import units_of

OWN = runpy.run_path(str(Path(__file__).parents[2] / "models" / "programs" / "own.py"))


def test_stages_compute_what_the_model_does_under_its_names() -> None:
    model = OWN["transformer"](vocabulary=5, context=4)
    assert list(layers_of(model)) == ["embedding", "layers.0", "layers.1", "head"]
    stages = [stage_of(layers_of(model), range(2)), stage_of(layers_of(model), range(2, 4))]
    tokens = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(stages[1](stages[0](tokens)), model(tokens))
    whole = join_stages(stages)
    assert whole.state_dict().keys() == model.state_dict().keys()
    assert next(name for name, _ in stages[1].named_parameters()) == "layers.1.norm1.weight"


def test_children_of_a_sequential_though_one_is_used_twice() -> None:
    relu = nn.ReLU()
    layers = layers_of(nn.Sequential(nn.Linear(2, 2), relu, nn.Linear(2, 2), relu))
    assert list(layers) == ["0", "1", "2", "3"]
    assert Chain(layers)(torch.ones(1, 2)).shape == (1, 2)


def test_units_that_are_sharded_are_modules_that_are_called() -> None:
    model = OWN["transformer"](vocabulary=5, context=4)
    names = ["embedding", "layers.0", "layers.1", "head"]
    assert list(units_of(model)) == list(units_of(Chain(layers_of(model)))) == names


@pytest.mark.parametrize(
    ("model", "stages", "words"),
    [
        (OWN["autoencoder"](inputs=(3,)), None, "Autoencoder cannot be split into stages: make it"),
        (OWN["tied"](), None, "2.weight is a parameter of 1 as well, and a pipeline"),
        (OWN["perceptron"]((3,), 2), ("first",), "leaves out second.weight"),
        (OWN["perceptron"]((3,), 2), ("first", "third"), "names third, which Perceptron does not"),
    ],
)
def test_what_is_no_chain(model: nn.Module, stages: tuple[str, ...] | None, words: str) -> None:
    if stages is not None:
        model.pipeline_stages = stages
    with pytest.raises(UserError, match=words):
        layers_of(model)
