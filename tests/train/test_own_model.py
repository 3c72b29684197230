"""Model and loss of the user's are tried before the first step, and known by their tensors."""

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.models.build import build_model
from phalanx.models.options import MNIST_SHAPE
from phalanx.parallel.loss import CrossEntropy
from phalanx.train.config import TrainConfig
from phalanx.train.own_model import examine, make_loss
from phalanx.train.recipe import recipe_of
from phalanx.train.run import new_folder

OWN = Path(__file__).parents[1] / "models" / "programs" / "own.py"


def config(model: str, loss: str | None = None, **options: object) -> TrainConfig:
    words = {"loss": None if loss is None else f"{OWN}:{loss}", **options}
    return TrainConfig.from_options(model=f"{OWN}:{model}", ranks=1, **words)


def test_a_loss_of_classes_counts_correct_predictions_and_another_does_not() -> None:
    for model, loss, counts in (
        ("perceptron", None, True),
        ("perceptron", "margins", True),
        ("autoencoder", "squares", False),
    ):
        chosen = config(model, loss)
        made = make_loss(chosen, build_model(chosen.model, seed=0), MNIST_SHAPE)
        assert made.counts_correct == counts
        assert isinstance(made, CrossEntropy) == (loss is None)


def test_the_tensors_of_the_model_are_known_beforehand() -> None:
    tensors = examine(config("perceptron"), MNIST_SHAPE).tensors
    assert tensors["first.weight"] == (16, 784)
    assert list(tensors) == ["first.weight", "first.bias", "second.weight", "second.bias"]


@pytest.mark.parametrize(
    ("model", "loss", "words"),
    [
        ("autoencoder", None, "returned a tuple for inputs of 3 × 1 × 28 × 28: .* needs 3 × 10"),
        ("too_few", None, "returned 3 × 3 for inputs .*10 classes needs 3 × 10"),
        (
            "perceptron",
            "squares",
            r"given outputs of 3 × 10: RuntimeError: .*\n.*in squares: return",
        ),
    ],
)
def test_what_does_not_fit_is_told_before_ranks_start(
    model: str, loss: str | None, words: str
) -> None:
    with pytest.raises(UserError, match=words) as told:
        examine(config(model, loss), MNIST_SHAPE)
    assert len(str(told.value).splitlines()) <= 2


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(UserError, match=r"--label-smoothing 0\.1 is for the built-in"):
        config("perceptron", "margins", label_smoothing=0.1)
    with pytest.raises(UserError, match='Invalid value "vgg" for --model'):
        TrainConfig.from_options(model="vgg")


def test_names_in_records_have_no_folders() -> None:
    chosen = config("perceptron", "margins")
    assert recipe_of(chosen)["loss"] == "own.py:margins"
    assert new_folder(chosen).name.endswith("own-perceptron-sequential")
