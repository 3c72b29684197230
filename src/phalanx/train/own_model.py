"""The loss of the options; a model or a loss of the user's is tried once before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from phalanx.errors import UserError
from phalanx.models.options import DataShape, is_own_model
from phalanx.models.own_model import (
    EXAMPLES,
    example_inputs,
    example_targets,
    fits_classes,
    run_once,
)
from phalanx.models.user_function import FunctionName, load, load_any, users_code
from phalanx.train.config import TrainConfig


def named_tensor_plan(text: str | None) -> object:
    """Return the tensor plan of the caller, which `text` names; None: the model's own."""
    return None if text is None else load_any(FunctionName.parse("--tensor-plan", text))


@dataclass(frozen=True)
class TrainingLoss:
    """The loss of the options: of outputs and targets, the mean over these, 0-dim."""

    train: Callable[[Any, Tensor], Tensor]
    evaluate: Callable[[Any, Tensor], Tensor]
    """Loss of training, without label smoothing."""
    counts_correct: bool
    """True if outputs are logits of classes."""


def make_loss(config: TrainConfig, model: nn.Module, shape: DataShape) -> TrainingLoss:
    """Return the loss of the options. Where model or loss are the user's, they are tried first.

    Raises: UserError for what the user's code raises, with its file and line, or where it does not
            fit the data.
    """
    smoothing = config.label_smoothing
    usual = TrainingLoss(partial(mean_cross_entropy, smoothing=smoothing), mean_cross_entropy, True)
    if not (is_own_model(config.model) or config.loss):
        return usual
    inputs = example_inputs(shape, getattr(torch, config.dtype))
    with users_code(f"--model {config.model}, given inputs of {_sizes(inputs)}"):
        outputs = run_once(model, inputs)
    fits = fits_classes(outputs, shape)
    if config.loss is None:
        if not fits:
            raise _no_logits(config, shape, inputs, outputs)
        return usual
    name = FunctionName.parse("--loss", config.loss)
    function = load(name)
    targets = example_targets(shape, getattr(torch, config.dtype))
    with torch.no_grad(), users_code(f"{name}, given outputs of {_sizes(outputs)}"):
        mean = function(outputs, targets)
        if not isinstance(mean, Tensor) or mean.dim():
            given = f"of shape {tuple(mean.shape)}" if isinstance(mean, Tensor) else f"{mean!r:.40}"
            raise UserError(
                f"--loss returned {given}: it must return the mean over the micro-batch, a 0-dim "
                "tensor"
            )
    return TrainingLoss(function, function, fits)


def mean_cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the mean over all targets, 0-dim.

    logits: (n, classes) or (n, T, classes); targets: (n,) or (n, T).
    smoothing: probability that a target spreads evenly over all classes. Source: Szegedy et al.
    2016, arXiv:1512.00567.
    """
    logits, targets = logits.flatten(0, -2), targets.flatten()
    loss = cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    return loss / len(targets)


def _no_logits(config: TrainConfig, shape: DataShape, inputs: Any, outputs: Any) -> UserError:
    if shape.targets is not None:
        return UserError(
            f"--model {config.model}: the targets of this data are quantities, of "
            f"{' × '.join(map(str, shape.targets)) or 'one number'} per sample: give a loss for "
            "them by --loss file.py:function"
        )
    wanted = (*inputs.shape, shape.num_classes) if shape.is_text else (EXAMPLES, shape.num_classes)
    return UserError(
        f"--model {config.model} returned {_sizes(outputs)} for inputs of {_sizes(inputs)}: the "
        f"cross entropy of {shape.num_classes} classes needs {_sizes(torch.empty(wanted))}\nreturn "
        "that shape, or give a loss for such outputs by --loss file.py:function"
    )


def _sizes(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return " × ".join(map(str, value.shape)) or "one number"
    return f"a {type(value).__name__}"
