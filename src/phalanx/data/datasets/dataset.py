"""Full data set in memory as tensors; batches are made by index, without per-sample Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.data.datasets.arrays import read_arrays
from phalanx.data.datasets.catalog import DatasetChoice, Name, resolve
from phalanx.errors import UserError
from phalanx.models.options import MNIST_SHAPE, DataShape

# Mean and standard deviation of the training pixels, of 0 to 1, of each channel.
_NORMALISATION: Mapping[Name, tuple[Sequence[float], Sequence[float]]] = {
    "digits": ([0.1647], [0.3399]),
    "mnist": ([0.1307], [0.3081]),
    "fashion": ([0.2860], [0.3530]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
}


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Inputs, a row a sample, and what is to be predicted of each.

    Images: (n, channels, height, width), normalised to mean 0 and deviation 1; targets (n,) int64.
    Text: (n, context) int64 tokens; targets (n, context), the token that follows each.
    """

    name: Name
    train_inputs: Tensor
    train_targets: Tensor
    validation_inputs: Tensor
    validation_targets: Tensor
    reason: str
    """One sentence for the user: the data that was taken, and why."""
    shape: DataShape = MNIST_SHAPE


def load_dataset(
    name: str = "auto",
    data_root: Path | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    train_samples: int | None = None,
    validation_samples: int | None = None,
) -> Dataset:
    """Read a data set by its name; see `catalog.resolve` for what `auto` takes.

    dtype: of the images. train_samples, validation_samples: keep the first so many; None keeps all.
    Raises: UserError when the data is missing, truncated or damaged, or has fewer samples.
    """
    choice = resolve(name, data_root)
    arrays = read_arrays(choice)
    _check("--train-samples", choice, train_samples, len(arrays.train_inputs))
    _check("--validation-samples", choice, validation_samples, len(arrays.validation_inputs))
    return Dataset(
        name=choice.name,
        train_inputs=_inputs(arrays.train_inputs[:train_samples], choice, dtype),
        train_targets=_targets(arrays.train_targets[:train_samples]),
        validation_inputs=_inputs(arrays.validation_inputs[:validation_samples], choice, dtype),
        validation_targets=_targets(arrays.validation_targets[:validation_samples]),
        reason=choice.reason,
        shape=choice.shape,
    )


def _check(option: str, choice: DatasetChoice, wanted: int | None, largest: int) -> None:
    if wanted is not None and not 1 <= wanted <= largest:
        raise UserError(f"{option} must be 1 to {largest} for {choice.name}, not {wanted}")


def _inputs(inputs: NDArray[Any], choice: DatasetChoice, dtype: torch.dtype) -> Tensor:
    """Tokens as they are; images (n, channels, height, width) as numbers of mean 0 and deviation 1,
    after one copy."""
    if choice.name == "text":
        return torch.from_numpy(inputs)
    means, deviations = (torch.tensor(v, dtype=dtype) for v in _NORMALISATION[choice.name])
    shape = (-1, *choice.shape.inputs)
    images = torch.from_numpy(inputs.astype(np.uint8, copy=False)).reshape(shape)
    tensor = images.to(dtype, memory_format=torch.contiguous_format, copy=True)
    scales, shifts = 1 / (255 * deviations), means / deviations
    return tensor.mul_(scales[:, None, None]).sub_(shifts[:, None, None])


def _targets(targets: NDArray[Any]) -> Tensor:
    return torch.from_numpy(targets).to(torch.int64)
