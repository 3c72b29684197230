"""Options of the models, with their defaults and limits. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from phalanx.errors import UserError
from phalanx.models.user_function import FunctionName

ModelName = Literal["mlp", "cnn", "rnn", "gpt", "resnet"]
"""The built-in models; any other is `file.py:function`, a function of the user's that makes it."""


def is_own_model(name: str) -> bool:
    """Return whether `name` is that of a function of the user's."""
    return ":" in name


def model_label(name: str) -> str:
    """Return the name of a model in records and checkpoints, without folders."""
    return FunctionName.parse("--model", name).label if is_own_model(name) else name


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """Shape of a model's input, and number of classes that it predicts."""

    inputs: tuple[int, ...] = (1, 28, 28)
    """Shape of one sample: (channels, height, width) of an image, (context,) of a text."""

    num_classes: int = 10
    """Number of classes of an image, or of the next token; 0 for quantities."""

    targets: tuple[int, ...] | None = None
    """Shape of a sample's targets where these are quantities, for a loss of the user's; None:
    classes."""

    has_fractions: bool = False
    """True if quantities are of the run's dtype; else they are int64."""

    @property
    def is_text(self) -> bool:
        return len(self.inputs) == 1 and self.targets is None

    @property
    def is_image(self) -> bool:
        return len(self.inputs) == 3 and self.targets is None

    @property
    def targets_per_sample(self) -> int:
        """Predictions that a sample asks for: one of an image, one of each token of a text."""
        return self.inputs[0] if self.is_text else 1


MNIST_SHAPE = DataShape()


RESNET_STAGES = 3


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Sizes; None stands for the model's own default until `completed` fills it in."""

    width: int | None = None
    """Hidden units of the MLP's first layer (the second has half), channels of the ResNet's first
    stage, width of the GPT's residual stream."""

    layers: int | None = None
    """Blocks of the GPT; residual blocks of each of the ResNet's three stages."""

    heads: int | None = None
    """Attention heads of the GPT."""

    @property
    def given(self) -> dict[str, int]:
        """Return the sizes that are not None, by name."""
        return {name: size for name, size in vars(self).items() if size is not None}


_DEFAULTS: Mapping[str, ModelOptions] = {
    "mlp": ModelOptions(width=256),
    "cnn": ModelOptions(),
    "rnn": ModelOptions(),
    "gpt": ModelOptions(width=128, layers=4, heads=4),
    "resnet": ModelOptions(width=16, layers=1),
}


def completed(name: str, options: ModelOptions) -> ModelOptions:
    """Return `options` with the model's defaults filled in; a user's model has none.

    Raises: UserError when there is no such model, it has no such option, or sizes do not fit each
            other.
    """
    if is_own_model(name):
        FunctionName.parse("--model", name)
        return options
    if name not in _DEFAULTS:
        known = ", ".join(f'"{known}"' for known in get_args(ModelName))
        raise UserError(
            f'Invalid value "{name}" for --model. Choose from: {known}, or name a function that '
            "makes yours: file.py:function."
        )
    defaults = _DEFAULTS[name]
    for option, value in options.given.items():
        if option not in defaults.given:
            raise UserError(f"--model {name} has no --{option}: leave --{option} {value} out")
        if value < 1:
            raise UserError(f"--{option} must be at least 1, not {value}")
    chosen = replace(defaults, **options.given)
    if chosen.heads and chosen.width and chosen.width % chosen.heads:
        raise UserError(
            f"--width {chosen.width} does not divide by --heads {chosen.heads}: "
            "every head needs the same number of channels"
        )
    return chosen


def check_data(name: str, shape: DataShape) -> None:
    """Raise UserError when the model cannot read this kind of data; not known of the user's own."""
    if is_own_model(name):
        return
    if not (shape.is_text or shape.is_image):
        inputs = " × ".join(map(str, shape.inputs))
        learned = "classes" if shape.targets is None else "quantities"
        raise UserError(
            f"--model {name} learns classes of images and texts, but this data has inputs of "
            f"{inputs} and {learned}: use your model by --model file.py:function"
            + ("" if shape.targets is None else ", and its loss, --loss file.py:function")
        )
    if (name == "gpt") != shape.is_text:
        fitting = [n for n in get_args(ModelName) if (n == "gpt") == shape.is_text]
        kind = "text" if shape.is_text else "images"
        raise UserError(
            f"--model {name} cannot learn from {kind}: use --model {' or '.join(fitting)}, "
            + ("or --dataset digits" if shape.is_text else "or --dataset text")
        )
    sizes = " × ".join(map(str, shape.inputs))
    if name == "rnn" and shape.inputs[0] != 1:
        raise UserError(
            f"--model rnn reads images with one channel, row by row, not {sizes}: use --model "
            "resnet, cnn or mlp"
        )
    if name == "cnn" and min(shape.inputs[1:]) < 4:
        raise UserError(
            f"--model cnn halves an image twice, so it needs at least 4 × 4 pixels, not {sizes}: "
            "use --model mlp"
        )


def stage_layers(name: str, options: ModelOptions, *, is_split: bool = False) -> tuple[str, ...]:
    """Return the layers between which a pipeline may cut, in the order of the forward pass.

    They are names of the model's children that hold parameters; none if it is not a chain of
    layers.

    options: completed. is_split: by tensor parallelism, whose pairs of layers stay together.
    """
    if name == "mlp":
        return ("hidden1 to hidden2", "output") if is_split else ("hidden1", "hidden2", "output")
    blocks = range(1, (options.layers or 0) + 1)
    if name == "gpt":
        return ("embedding", *(f"block{i}" for i in blocks), "norm", "head")
    if name == "resnet":
        stages = range(1, RESNET_STAGES + 1)
        return ("stem", *(f"stage{s}_block{b}" for s in stages for b in blocks), "output")
    return ()


def tensor_splits(name: str, options: ModelOptions) -> Mapping[str, int]:
    """Return the sizes that tensor parallelism divides among its ranks, by option; empty where the
    model has no tensor parallelism.

    options: completed.
    """
    split = {"mlp": ("width",), "gpt": ("heads", "width")}.get(name, ())
    return {f"--{option}": options.given[option] for option in split}
