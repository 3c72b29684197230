"""Shared-memory slots (memfd) that one process fills and another reads; the kernel frees them when
both processes have ended, even after a crash.

The writer owns the slots: it fills a free one, and is told when the reader has released it. A slot
holds a pickle, followed by the buffers of its arrays.
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


class FilledSlot(NamedTuple):
    """Description of a filled slot, sent to the reader."""

    slot: int
    num_bytes: int
    """Of the slot."""
    extents: list[tuple[int, int]]
    """Begin and end of the pickle, and of every buffer."""


class SlotWriter:
    """Slots that this process fills; their number grows to the most in use at once."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self._memories: list[mmap.mmap] = []
        self._free: set[int] = set()

    def free(self, slots: list[int]) -> None:
        self._free.update(slots)

    def put(self, value: object) -> tuple[FilledSlot, int | None]:
        """Write a value; return its layout, and the slot's descriptor if new. Copies once."""
        buffers: list[pickle.PickleBuffer] = []
        text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        contents = [memoryview(text), *(buffer.raw() for buffer in buffers)]
        extents, end = [], 0
        for content in contents:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + content.nbytes
            extents.append((begin, end))
        slot, is_new = self._acquire_slot(end)
        memory = self._memories[slot]
        for (begin, stop), content in zip(extents, contents, strict=True):
            memory[begin:stop] = content.cast("B") if content.nbytes else b""
        filled = FilledSlot(slot, len(memory), extents)
        return filled, self._descriptors[slot] if is_new else None

    def _acquire_slot(self, num_bytes: int) -> tuple[int, bool]:
        """Return a free slot, grown if needed, or a new one; and whether it is new."""
        if not self._free:
            self._descriptors.append(os.memfd_create("phalanx-reader"))
            self._memories.append(self._grow(-1, num_bytes))
            return len(self._memories) - 1, True
        slot = max(self._free, key=lambda free: len(self._memories[free]))
        self._free.remove(slot)
        if len(self._memories[slot]) < num_bytes:
            self._memories[slot].close()
            self._memories[slot] = self._grow(slot, num_bytes)
        return slot, False

    def _grow(self, slot: int, num_bytes: int) -> mmap.mmap:
        os.ftruncate(self._descriptors[slot], max(num_bytes, mmap.PAGESIZE))
        return mmap.mmap(self._descriptors[slot], 0)


class SlotReader:
    """Slots filled by another process."""

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}
        self._memories: dict[int, mmap.mmap] = {}
        self.unused: list[int] = []
        """Released slots that the writer has not been told of yet."""

    def add(self, slot: int, descriptor: int) -> None:
        self._descriptors[slot] = descriptor

    def take(self, filled: FilledSlot) -> Any:
        """Return the value; its arrays alias the slot, which is released with the last of them."""
        memory = self._memories.get(filled.slot)
        if memory is None or len(memory) != filled.num_bytes:
            memory = mmap.mmap(self._descriptors[filled.slot], filled.num_bytes)
            self._memories[filled.slot] = memory
        base = np.frombuffer(memory, np.uint8)
        finalizer = weakref.finalize(base, _on_release(self.unused, filled.slot))
        finalizer.atexit = False
        text, *buffers = (memoryview(base.data)[begin:end] for begin, end in filled.extents)
        return pickle.loads(text, buffers=buffers)  # of a process that this one has started

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._memories.clear()  # unmapped with the last array


def _on_release(unused: list[int], slot: int) -> Callable[[], None]:
    return lambda: unused.append(slot)
