"""Kinds of data that a program may give, the feed of each, and the layers and samples by which runs
with the same options and shapes differ."""

from __future__ import annotations

import copy
import hashlib
import inspect
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from phalanx.data.samples import PackSamples, Samples, TensorSamples
from phalanx.data.sources.packed import Packed
from phalanx.errors import UserError
from phalanx.run.feed import Feed, FeedPlace
from phalanx.run.packed import PackedSamples
from phalanx.run.randomness import generators_kept, seed_generators
from phalanx.run.samples import DatasetSamples, samples_of, samples_of_dataset
from phalanx.run.streams import GeneratedFeed, ShardedFeed, StreamFeed


@dataclass(frozen=True)
class UnindexedData:
    """Data that are not read by number."""

    kind: str
    """Words for them in checkpoints."""
    feed: Callable[[FeedPlace], Feed]
    is_read_once: bool
    """True if they have one epoch, as those of a function and of an iterator."""


Source = Samples | UnindexedData


def source_of(
    data: object,
    loading: dict[str, Any],
    *,
    sharded: bool,
    epochs: int,
    steps: int | None,
    loader: DataLoader[Any] | None = None,
) -> Source:
    """Return what a program calls its data.

    loading: arguments of PyTorch's `DataLoader`. loader: that had the data.
    Raises: UserError for what is no data, or does not fit the other arguments.
    """
    if isinstance(data, Packed):
        if sharded or loading:
            wrong = "sharded=True" if sharded else f"loading={loading!r}"
            raise UserError(f"{wrong} is not for phalanx.Packed, which has its readers")
        return PackedSamples(data)
    if sharded:
        if "collate_fn" in loading:
            raise UserError("loading: collate_fn is for samples: sharded data are micro-batches")
        batches = _iterable(data, loading, epochs)
        return UnindexedData(
            "sharded", partial(ShardedFeed, batches), isinstance(batches, Iterator)
        )
    if isinstance(data, IterableDataset) or _is_stream(data):
        samples = _iterable(data, loading, epochs)
        drops_last = loader is not None and loader.drop_last
        feed = partial(StreamFeed, samples, drops_last=drops_last)
        return UnindexedData("a stream", feed, isinstance(samples, Iterator))
    if loader is not None:
        return samples_of_dataset(data, loading)
    if not callable(data) or isinstance(data, (nn.Module, type)) or hasattr(data, "__getitem__"):
        return samples_of(data, loading)
    if steps is None:
        raise UserError("data is a function, which makes samples endlessly: give steps=")
    if epochs != 1 or loading:
        wrong = f"epochs={epochs}" if epochs != 1 else "loading="
        raise UserError(f"{wrong} is not for data from a function: these are one epoch of steps=")
    return UnindexedData("a function", partial(GeneratedFeed, data), is_read_once=True)


def check_loading(loading: dict[str, Any] | None, source: Source) -> None:
    """Raise UserError for arguments of PyTorch's `DataLoader` that are none, are the run's own
    affair, or that these data do not need.

    loading: as the program gave it.
    """
    if not loading:
        return
    known = inspect.signature(DataLoader).parameters.keys() - {"dataset"}
    for name in loading:
        if name in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"):
            raise UserError(
                f"loading: {name} conflicts with the run, which chooses the samples of each global "
                "batch (batch_size=): leave it out"
            )
        if name not in known:
            raise UserError(f"loading: {name!r} is not an argument of PyTorch's DataLoader")
    if isinstance(source, TensorSamples):
        raise UserError(f"loading={loading!r} is for a Dataset, but data are tensors: leave it out")


def identity_of(source: Source) -> dict[str, str]:
    """Return an identifier of a run's data: their kind, and for a pack the hash of its index."""
    kind = source.kind if isinstance(source, UnindexedData) else "samples by number"
    identity = {"kind of data": kind}
    if isinstance(source, (PackSamples, PackedSamples)):
        identity["pack"] = source.fingerprint
    if isinstance(source, PackedSamples):
        identity["preparation"] = source.preparation
    return identity


def _is_stream(data: object) -> bool:
    """Return whether items can be read one after the other alone."""
    return (
        isinstance(data, Iterable)
        and not hasattr(data, "__getitem__")
        and not isinstance(data, DataLoader)
    )


def _iterable(data: object, loading: dict[str, Any], epochs: int) -> Iterable[Any]:
    """Return data that are read one after the other. Raises: UserError where they cannot."""
    is_whole = isinstance(data, (Tensor, np.ndarray, dict)) or (
        isinstance(data, tuple) and all(isinstance(part, (Tensor, np.ndarray)) for part in data)
    )
    if not isinstance(data, Iterable) or is_whole:
        raise UserError(
            f"data is of type {type(data).__name__}: with sharded=True give an iterable of the "
            "micro-batches of this rank"
        )
    if isinstance(data, Iterator) and epochs > 1:
        raise UserError(
            f"epochs={epochs}, but data is an iterator ({type(data).__name__}), which can be read "
            "only once: give an iterable whose __iter__ restarts, or epochs=1"
        )
    options = loading.keys() - {"collate_fn"}
    if options and not isinstance(data, IterableDataset):
        raise UserError(
            f"loading={loading!r} is for a data set of PyTorch, but data is of type "
            f"{type(data).__name__}: leave it out"
        )
    return data


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
        return ""  # an opened reader could not be sent to workers
    if any(isinstance(value, GENERATORS) for value in vars(source.dataset).values()):
        return ""  # reading would advance its state
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
