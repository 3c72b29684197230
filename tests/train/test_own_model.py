"""Model and loss of the user's are tried before the first step."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from phalanx.errors import UserError
from phalanx.models.build import build_model
from phalanx.models.options import MNIST_SHAPE
from phalanx.records.events import FinishedEvent
from phalanx.records.files import rank_file, read_events
from phalanx.train.config import TrainConfig
from phalanx.train.own_model import make_loss, mean_cross_entropy
from phalanx.train.resume import recipe_of
from phalanx.train.run import begin_run, new_folder, setting_of
from phalanx.train.session import train
from phalanx.train.validate import validate

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
        assert (made.evaluate is mean_cross_entropy) == (loss is None)


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
def test_what_does_not_fit_is_told_before_the_first_step(
    model: str, loss: str | None, words: str
) -> None:
    chosen = config(model, loss)
    with pytest.raises(UserError, match=words) as told:
        make_loss(chosen, build_model(chosen.model, seed=0), MNIST_SHAPE)
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
    setting = setting_of(dataclasses.replace(chosen, threads=1))
    assert (setting.model, setting.options["loss"]) == ("own.py:perceptron", "own.py:margins")


def test_random_numbers_of_a_step_depend_on_the_seed_alone(tmp_path: Path) -> None:
    """So that a resumed run goes on as the one that it resumes would have."""
    found = []
    for other in (1, 2):
        torch.manual_seed(other)
        chosen = config("noisy", epochs=1, train_samples=256, dataset="digits", threads=1)
        begin_run(tmp_path / str(other), chosen, study="train", command=(), mpi=None)
        train(chosen, None, tmp_path / str(other))
        *_, finished = read_events(rank_file(tmp_path / str(other), 0))
        assert isinstance(finished, FinishedEvent)
        found.append(finished.parameters_sha256)
    assert found[0] == found[1]


def test_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own_program.md").read_text()
    monkeypatch.chdir(tmp_path)
    Path("my_module.py").write_text(page.split("```python\n# my_module.py\n")[1].split("```")[0])
    commands = re.findall(r"^    phalanx train (--model my_module.*)$", page, flags=re.M)
    assert len(commands) == 4
    for command in commands:
        words = command.split()
        options = {
            word.strip("-").replace("-", "_"): value
            for word, value in zip(words[::2], words[1::2], strict=True)
        }
        options.pop("data", None)
        chosen = TrainConfig.from_options(**{**options, "ranks": int(options.get("ranks", 1))})
        validate(chosen, MNIST_SHAPE)
        make_loss(chosen, build_model(chosen.model, seed=0), MNIST_SHAPE)
