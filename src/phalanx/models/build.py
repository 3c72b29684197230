"""Models from a name and a seed: the same weights in every layout, on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import nn

from phalanx.models.cnn import CNN
from phalanx.models.gpt import GPT
from phalanx.models.mlp import MLP
from phalanx.models.options import (
    MNIST_SHAPE,
    DataShape,
    ModelOptions,
    completed,
    is_own_model,
)
from phalanx.models.own_model import build_own_model
from phalanx.models.resnet import ResNet
from phalanx.models.rnn import RNN

_CLASSES: dict[str, Callable[..., nn.Module]] = {
    "mlp": MLP, "cnn": CNN, "rnn": RNN, "gpt": GPT, "resnet": ResNet
}  # fmt: skip


def build_model(
    name: str,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    options: ModelOptions | None = None,
    shape: DataShape = MNIST_SHAPE,
) -> nn.Module:
    """Build a model whose initial weights depend on `seed` and each parameter's name alone; a
    user's model on `seed` and the user's function.

    Raises: UserError when `options` do not fit the model, or that function fails.
    """
    if is_own_model(name):
        known = options or ModelOptions()
        return build_own_model(name, seed=seed, dtype=dtype, options=known, shape=shape)
    sizes = completed(name, options or ModelOptions()).given
    model = _CLASSES[name](shape=shape, **sizes).to(dtype)
    initialize(model, seed)
    return model


def initialize(model: nn.Module, seed: int) -> None:
    """Draw every parameter of `model` anew from U(-b, b), b = 1 ÷ √fan_in, PyTorch's own default;
    those of a normalisation become 1 and 0, those of an embedding are of U(-0.05, 0.05).

    Each parameter has a generator of its own, seeded by (seed, name): a model that is split over
    ranks by layer or by name starts from the weights of the whole one. Drawn in float64, so that
    a float32 model starts from the rounded weights of the float64 one.
    """
    for module_name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.LayerNorm | nn.BatchNorm2d | nn.GroupNorm):
                nn.init.constant_(parameter, 1.0 if parameter_name == "weight" else 0.0)
                continue
            name = f"{module_name}.{parameter_name}"
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            bound = _bound(module)
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                parameter.copy_((2 * drawn - 1) * bound)


def _bound(module: nn.Module) -> float:
    if isinstance(module, nn.Embedding):
        return 0.05
    if isinstance(module, nn.RNNBase):
        return float(module.hidden_size**-0.5)
    if isinstance(module, nn.Linear | nn.Conv2d):
        return float(module.weight[0].numel() ** -0.5)
    raise TypeError(f"no rule for the initial weights of {type(module).__name__}")
