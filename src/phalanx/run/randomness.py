"""Random numbers that belong to a micro-batch or a sample, not to the rank that computes it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from phalanx.data.hashing import hash_seed

_NUMPY: Any = np.random  # whose stubs lack the doors to its global generator


def seed_micro_batch(seed: int, step: int, number: int) -> None:
    """Seed all generators by (seed, step, micro-batch): dropout and noise come out the same on any
    number of ranks. Cost: 20 µs."""
    seed_generators(hash_seed(hash_seed(seed, step), number))


def seed_generators(seed: int) -> None:
    """Seed the generators that a program shares with its libraries: PyTorch's, NumPy's global one
    and that of Python's `random`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    accelerator = torch.accelerator.current_accelerator()
    device = None if accelerator is None else getattr(torch, accelerator.type, None)
    if device is not None and getattr(device, "is_initialized", device.is_available)():
        device.manual_seed(seed)


def are_used() -> bool:
    """Return whether any of these generators has been drawn from since it was seeded."""
    torch_now, seed = torch.default_generator, torch.default_generator.initial_seed()
    if not torch_now.get_state().equal(torch.Generator().manual_seed(seed).get_state()):
        return True
    if random.getstate() != random.Random(seed).getstate():
        return True
    _, keys, place, *_ = np.random.get_state(legacy=True)
    _, first_keys, first_place, *_ = np.random.RandomState(seed % 2**32).get_state(legacy=True)
    return place != first_place or not np.array_equal(keys, first_keys)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave these generators as they were. Cost: 150 µs, most of it NumPy's."""
    own, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(own)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)


class StreamState:
    """State of these generators that belongs to a stream: the same on every rank."""

    def __init__(self, seed: int) -> None:
        self._of_python = random.Random(seed).getstate()
        self._of_numpy = np.random.MT19937(seed % 2**32)
        self._of_torch = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def use(self) -> Iterator[None]:
        """Give the generators this state, and afterwards the program's back. Cost: 40 µs."""
        generator = torch.default_generator
        outer = random.getstate(), _NUMPY.get_bit_generator(), generator.get_state()
        random.setstate(self._of_python)
        _NUMPY.set_bit_generator(self._of_numpy)  # takes a hundredth of the time of set_state
        generator.set_state(self._of_torch)
        try:
            yield
        finally:
            self._of_python, self._of_torch = random.getstate(), generator.get_state()
            random.setstate(outer[0])
            _NUMPY.set_bit_generator(outer[1])
            generator.set_state(outer[2])

    def items(self, stream: Iterable[Any]) -> Iterator[Any]:
        """Yield the items, each without what the one before has left of a pair of normal numbers:
        NumPy forgets it wherever the state changes hands, which a resumed run does elsewhere."""
        for item in stream:
            yield item
            _NUMPY.set_bit_generator(_NUMPY.get_bit_generator())
