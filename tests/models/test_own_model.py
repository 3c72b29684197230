"""A model that the user's function makes: what it is given, its seed, and what goes wrong."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from phalanx.errors import UserError
from phalanx.models.build import build_model
from phalanx.models.options import MNIST_SHAPE, DataShape, ModelOptions, model_label
from phalanx.models.own_model import known_arguments
from phalanx.models.user_function import FunctionName, load

OWN = Path(__file__).parent / "programs" / "own.py"


def build(function: str, seed: int = 0, **options: int) -> nn.Module:
    return build_model(f"{OWN}:{function}", seed=seed, options=ModelOptions(**options))


def test_it_is_given_what_it_asks_for_and_its_weights_follow_the_seed() -> None:
    torch.manual_seed(99)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    one, again, other = build("perceptron", 1), build("perceptron", 1), build("perceptron", 2)
    assert one.first.weight.shape == (16, 784)
    assert one.second.weight.shape == (10, 16)
    assert torch.equal(one.first.weight, again.first.weight)
    assert not torch.equal(one.first.weight, other.first.weight)
    assert build("perceptron", width=3).first.weight.shape == (3, 784)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


def test_the_shape_of_text_and_of_images_by_name() -> None:
    images, text = known_arguments(MNIST_SHAPE), known_arguments(DataShape(inputs=(64,)))
    assert (images["channels"], images["image_size"]) == (1, (28, 28))
    assert (text["context"], text["vocabulary"]) == (64, 10)


def test_the_dtype_is_that_of_the_run() -> None:
    model = build_model(f"{OWN}:perceptron", seed=0, dtype=torch.float64)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("failing", r"RuntimeError: .*\n.*own\.py, line \d+, in failing: return nn\.Linear"),
        ("frozen", "without parameters to train"),
        ("no_module", r"returned a dict: it must return an nn\.Module"),
        ("demanding", "needs `colour`, which Phalanx does not pass.*use shape, inputs"),
        ("missing", "there is no such name; there are Perceptron, perceptron"),
    ],
)
def test_what_is_wrong_with_it_is_told(function: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as told:
        build(function)
    assert len(str(told.value).splitlines()) <= 2


def test_an_option_that_it_does_not_take_is_refused() -> None:
    with pytest.raises(UserError, match=r"--heads 2: perceptron of .* takes no `heads`"):
        build("perceptron", heads=2)


def test_a_file_that_cannot_be_imported_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def make():\n    return 1 +\n")
    with pytest.raises(UserError, match=r"SyntaxError: .*\n.*broken\.py, line 2: return 1 \+"):
        load(FunctionName.parse("--model", f"{path}:make"))
    path.write_text("import neighbour\nimport sys\nsys.exit(3)\n")
    (tmp_path / "neighbour.py").write_text("")
    with pytest.raises(UserError, match=r"SystemExit: 3\n.*broken\.py, line 3, in <module>"):
        load(FunctionName.parse("--model", f"{path}:make"))
    with pytest.raises(UserError, match="there is no file nowhere"):
        load(FunctionName.parse("--model", "nowhere.py:make"))
    sys.path.remove(str(tmp_path))


def test_a_module_by_its_name_and_the_label_of_a_model() -> None:
    assert load(FunctionName.parse("--model", "torch.nn:Linear")) is nn.Linear
    assert model_label("/some/where/net.py:make") == "net.py:make"
    assert model_label("some.where:make") == "some.where:make"
    assert model_label("mlp") == "mlp"
    for text in ("net.py:", ":make", "net.py:no name"):
        with pytest.raises(UserError, match=r"write file\.py:function"):
            FunctionName.parse("--model", text)
