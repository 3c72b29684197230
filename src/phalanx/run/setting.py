"""Names of a program's model and data in its records."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor, nn


def name_of_model(model: nn.Module) -> str:
    """Return the class of a model; the program's name where that is a container of PyTorch's, which
    tells nothing."""
    kind = type(model)
    program = Path(sys.argv[0]).stem
    return program if kind.__module__.startswith("torch.") and program else kind.__name__


def describe_data(data: object) -> str:
    """Return what records call the data of a program."""
    is_tensors = isinstance(data, (tuple, list)) and all(isinstance(p, Tensor) for p in data)
    return "tensors" if is_tensors or isinstance(data, Tensor) else type(data).__name__
