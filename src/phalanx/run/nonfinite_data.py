"""Samples whose data are not finite, where a loss is not: the cause that is looked for last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phalanx.run.batch import MicroBatch


def find_bad_sample(batch: MicroBatch, rank: int) -> str:
    """Return the first sample of a micro-batch with a NaN or an infinity; empty: there is none."""
    for part, tensor in _parts(batch.data, ""):
        bad = (~tensor.isfinite()).reshape(len(tensor), -1).any(1).nonzero()
        if len(bad):
            row = int(bad[0])
            value = tensor[row][~tensor[row].isfinite()].flatten()[0].item()
            of_batch = f"row {row} of micro-batch {batch.number} on rank {rank}"
            numbers = batch.indices if batch.indices is not None else ()
            has_number = len(numbers) == len(tensor)
            name = f"sample {int(numbers[row])} ({of_batch})" if has_number else of_batch
            return f"the data have {value} in {name}{part and f', in {part}'}"
    return ""


def _parts(data: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested data that may hold what is not finite, with their places."""
    if isinstance(data, dict):
        for key, part in data.items():
            yield from _parts(part, f"{name}[{key!r}]" if name else str(key))
    elif isinstance(data, (tuple, list)):
        words = ("inputs", "targets") if not name and len(data) == 2 else ()
        for number, part in enumerate(data):
            yield from _parts(part, words[number] if words else f"{name or 'data'}[{number}]")
    elif isinstance(data, np.ndarray) and data.dtype.kind in "fc":
        yield from _parts(torch.from_numpy(data), name)
    elif (
        isinstance(data, Tensor) and data.dim() and (data.is_floating_point() or data.is_complex())
    ):
        yield name, data.detach()
