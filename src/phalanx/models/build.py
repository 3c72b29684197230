"""From a name and a seed to a model: the same weights in every layout, on every rank."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from phalanx.models.cnn import CNN
from phalanx.models.mlp import MLP
from phalanx.models.rnn import RNN

MODELS: dict[str, type[nn.Module]] = {"mlp": MLP, "cnn": CNN, "rnn": RNN}


def build_model(name: str, *, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A new model whose initial weights depend on `seed` and each parameter's name alone."""
    model = MODELS[name]().to(dtype)
    initialize(model, seed)
    return model


def initialize(model: nn.Module, seed: int) -> None:
    """Draw every parameter of `model` anew from U(-b, b), b = 1 ÷ √fan_in, PyTorch's own default.

    Each parameter has a generator of its own, seeded by (seed, name): a model that is split over
    ranks by layer or by name starts from the weights of the whole one. Drawn in float64, so that
    a float32 model starts from the rounded weights of the float64 one.
    """
    for module_name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            name = f"{module_name}.{parameter_name}"
            digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            bound = _fan_in(module) ** -0.5
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                parameter.copy_((2 * drawn - 1) * bound)


def _fan_in(module: nn.Module) -> int:
    if isinstance(module, nn.RNNBase):
        return module.hidden_size
    if isinstance(module, nn.Linear | nn.Conv2d):
        return module.weight[0].numel()
    raise TypeError(f"no rule for the initial weights of {type(module).__name__}")
