"""Memory without a name that one process fills and another reads: nothing is left of it when both
are gone, however they ended.

The writer owns the slots: it fills a free one, and hears when nobody looks at it any more. What
lies in a slot is a pickle and, after it, the buffers of its arrays.
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_ALIGNMENT = 64


class Filled(NamedTuple):
    """Description of a filled slot, sent to the reader."""

    slot: int
    num_bytes: int
    """Of the slot."""
    parts: list[tuple[int, int]]
    """Begin and end of the pickle, and of every buffer."""


class Writer:
    """Slots that this process fills; as many as are in use at once."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._memories: list[mmap.mmap] = []
        self._free: set[int] = set()

    def free(self, slots: list[int]) -> None:
        self._free.update(slots)

    def put(self, value: object) -> tuple[Filled, int | None]:
        """Where it lies, and the descriptor of the slot when it is new. Cost: one copy."""
        buffers: list[pickle.PickleBuffer] = []
        text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        contents = [memoryview(text), *(buffer.raw() for buffer in buffers)]
        parts, end = [], 0
        for content in contents:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + content.nbytes
            parts.append((begin, end))
        slot, is_new = self._slot(end)
        memory = self._memories[slot]
        for (begin, stop), content in zip(parts, contents, strict=True):
            memory[begin:stop] = content.cast("B") if content.nbytes else b""
        filled = Filled(slot, len(memory), parts)
        return filled, self._descriptors[slot] if is_new else None

    def _slot(self, num_bytes: int) -> tuple[int, bool]:
        """One that is free, grown where need be, or another one."""
        if not self._free:
            self._descriptors.append(os.memfd_create("phalanx-reader"))
            self._memories.append(self._grown(-1, num_bytes))
            return len(self._memories) - 1, True
        slot = max(self._free, key=lambda free: len(self._memories[free]))
        self._free.remove(slot)
        if len(self._memories[slot]) < num_bytes:
            self._memories[slot].close()
            self._memories[slot] = self._grown(slot, num_bytes)
        return slot, False

    def _grown(self, slot: int, num_bytes: int) -> mmap.mmap:
        os.ftruncate(self._descriptors[slot], max(num_bytes, mmap.PAGESIZE))
        return mmap.mmap(self._descriptors[slot], 0)


class Reader:
    """The slots of another process."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self._memories: dict[int, mmap.mmap] = {}
        self.unused: list[int] = []
        """Slots whose arrays are gone, for the writer to hear of."""

    def add(self, slot: int, descriptor: int) -> None:
        self._descriptors[slot] = descriptor

    def take(self, filled: Filled) -> Any:
        """The value; its arrays lie in the slot, which is given back when the last one dies."""
        memory = self._memories.get(filled.slot)
        if memory is None or len(memory) != filled.num_bytes:
            memory = mmap.mmap(self._descriptors[filled.slot], filled.num_bytes)
            self._memories[filled.slot] = memory
        base = np.frombuffer(memory, np.uint8)
        finalizer = weakref.finalize(base, _given_back(self.unused, filled.slot))
        finalizer.atexit = False
        text, *buffers = (memoryview(base.data)[begin:end] for begin, end in filled.parts)
        return pickle.loads(text, buffers=buffers)  # of a process that this one has started

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._memories.clear()  # unmapped with the last array


def _given_back(unused: list[int], slot: int) -> Callable[[], None]:
    return lambda: unused.append(slot)
