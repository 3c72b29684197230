"""Flat vector of a model's parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phalanx.comm.layout import starts_of


def flatten_parameters(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return all values as one vector (n,), one parameter after the other; the parameters become
    views.

    Raises: ValueError when they are not all of float32, or all of float64.
    """
    check_one_dtype(parameters)
    vector = torch.cat([parameter.detach().flatten() for parameter in parameters])
    for parameter, view in zip(parameters, views_of(vector, parameters), strict=True):
        parameter.data = view
    return vector


def check_one_dtype(parameters: Sequence[nn.Parameter]) -> None:
    """Raise ValueError when parameters are not all of float32, or all of float64."""
    dtypes = {parameter.dtype for parameter in parameters}
    if dtypes not in ({torch.float32}, {torch.float64}):
        raise ValueError(
            "the parameters must be all of float32 or all of float64, not of "
            + ", ".join(sorted(str(dtype) for dtype in dtypes))
        )


def views_of(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return views of a vector of as many values, in the parameters' shapes."""
    starts = starts_of([parameter.numel() for parameter in parameters])
    return [
        vector[start : start + parameter.numel()].view(parameter.shape)
        for parameter, start in zip(parameters, starts, strict=False)
    ]
