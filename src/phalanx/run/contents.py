"""Layers and samples of a run, by which runs of the same options and shapes differ."""

from __future__ import annotations

import copy
import hashlib
import random
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from phalanx.data.samples import TensorSamples
from phalanx.run.randomness import generators_kept, seed_generators
from phalanx.run.samples import DatasetSamples

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def layers_of(model: nn.Module) -> str:
    """Return the model's text, such as its activations and rates of dropout."""
    return ADDRESS.sub("", repr(model))


def ends_of(source: object) -> str:
    """Return a digest of the first and the last sample; empty where that says nothing: data that
    are read in their own order, made by a function, or that differ when they are read again."""
    if isinstance(source, TensorSamples):
        rows = [torch.tensor([n], device="cpu") for n in (0, len(source) - 1)]
        return _digest(list(source.batches(rows)))
    if not isinstance(source, DatasetSamples) or source.reads_in_processes:
        return ""  # what is opened to read could not be sent to workers
    if any(isinstance(value, GENERATORS) for value in vars(source.dataset).values()):
        return ""  # whose state would move on
    with generators_kept():
        try:
            digests = {_digest(_ends(source.dataset)) for _ in range(2)}
        except Exception:  # noqa: BLE001  # the run reads, too, and has the better error
            return ""
    return digests.pop() if len(digests) == 1 else ""


def _ends(dataset: Any) -> list[Any]:
    """Return the first and the last sample, read by a copy: what it opens is closed with it."""
    reader = copy.copy(dataset)
    seed_generators(0)
    return [reader[0], reader[len(reader) - 1]]


def _digest(value: Any) -> str:
    hashed = hashlib.sha256()
    _add(hashed, value)
    return hashed.hexdigest()[:16]


def _add(hashed: Any, value: Any) -> None:
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, (tuple, list)):
        for part in value:
            _add(hashed, part)
    elif isinstance(value, Tensor):
        array = value.detach().cpu().contiguous()
        hashed.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, (np.ndarray, np.generic)):
        hashed.update(value.tobytes())
    elif isinstance(value, (str, bytes, int, float, bool, complex)):
        hashed.update(repr(value).encode())
    elif callable(getattr(value, "tobytes", None)):  # an image
        hashed.update(value.tobytes())
