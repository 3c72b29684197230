"""Activations between stages: shapes and dtypes, found without computing anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from phalanx.models.options import DataShape


class Boundary(NamedTuple):
    """The tensor that leaves a layer or a stage."""

    shape: tuple[int, ...]
    """Shape of one sample."""

    dtype: torch.dtype

    def of(self, num_samples: int, device: str = "cpu") -> Tensor:
        """Return an empty tensor (num_samples, *shape)."""
        return torch.empty(num_samples, *self.shape, dtype=self.dtype, device=device)

    def num_bytes(self, num_samples: int) -> int:
        return self.of(num_samples, "meta").nbytes


def boundary_of_samples(sample: Tensor | None, model: nn.Module) -> Boundary:
    """Return shape and dtype of the samples that the model reads. sample: a program's, (1, …);
    None: a built-in model knows them."""
    if sample is not None:
        return Boundary(tuple(sample.shape[1:]), sample.dtype)
    shape = getattr(model, "shape", None)
    assert isinstance(shape, DataShape), "set before `prepare`"
    parameter = next(model.parameters())
    return Boundary(shape.inputs, torch.int64 if shape.is_text else parameter.dtype)


def outputs_of(layers: Sequence[nn.Module], samples: Tensor) -> list[Boundary]:
    """Return the output of each layer of a chain that reads `samples`.

    samples: (n, …), of which only shape and dtype are used.
    """
    given = torch.empty_like(samples, device="meta")
    outputs = []
    with torch.no_grad():
        for layer in layers:
            tensors = (*layer.named_parameters(), *layer.named_buffers())
            shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
            given = functional_call(layer, shapes, (given,))
            outputs.append(Boundary(tuple(given.shape[1:]), given.dtype))
    return outputs
