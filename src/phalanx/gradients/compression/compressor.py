"""Compressors: how a bucket of gradients is sent and summed, and their working memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Size, Tensor

from phalanx.comm.layout import CACHE_LINE_BYTES, aligned_starts_of
from phalanx.comm.traffic import all_reduce_traffic


class AsyncRounds(ABC):
    """Asynchronous rounds of one sum, in the same order on all ranks.

    Each call returns a function that waits for its round; until then its tensors must not be
    touched.
    """

    overlap: bool
    """True if a round goes on while others begin."""

    @abstractmethod
    def begin_all_to_all(
        self, outputs: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> Callable[[], None]:
        """Begin `all_to_all`; outputs[own rank] may be parts[own rank] itself, which may be written
        meanwhile."""

    @abstractmethod
    def begin_all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> Callable[[], None]:
        """Begin `all_gather`; `part` may be outputs[own rank] itself."""


class ReduceBackend(AsyncRounds):
    """Collectives that compressors need, over a `comm.Group` or a torch.distributed group; as
    rounds they are complete when a call returns.

    Tensors are contiguous and lie in CPU memory. All calls are collective, in the same order on all
    ranks, from one thread at a time.
    """

    overlap = False
    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, values: Tensor) -> None:
        """Sum over the ranks, in place."""

    @abstractmethod
    def all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> None:
        """Gather each rank's `part` into outputs[rank]; all of one size."""

    @abstractmethod
    def all_to_all(self, outputs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        """Receive parts[own rank] of each `peer` into outputs[peer]; of any sizes."""

    def begin_all_to_all(
        self, outputs: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> Callable[[], None]:
        self.all_to_all(outputs, parts)
        return _nothing

    def begin_all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> Callable[[], None]:
        self.all_gather(outputs, part)
        return _nothing

    def rounds(self, num_bytes: int) -> AbstractContextManager[AsyncRounds]:  # noqa: ARG002
        """Open the rounds of one sum of a vector whose encoding has `num_bytes`; the same on every
        rank."""
        return nullcontext(self)


class Compressor(ABC):
    """Compression of all buckets of one rank.

    State that it keeps of a bucket (residual, factors) is keyed by the bucket's number, and dropped
    when a sum was not finite.
    """

    name: str
    has_state = False
    """True if the state of a step changes later ones."""
    takes_slices = False
    """True if a part of a bucket can be compressed by itself, whatever the parameters' shapes."""

    @property
    def state_name(self) -> str:
        """Name of the saved state: it fits compressors of the same name alone."""
        return self.name

    def __init__(self) -> None:
        self._known: set[int] = set()

    def prepare(self, number: int, shapes: Sequence[Size]) -> None:  # noqa: ARG002  most need none
        """Declare bucket `number`, of parameters of `shapes`, one after the other. Declaring a
        number again means that all buckets are made anew: all state is dropped."""
        if number in self._known:
            self._known.clear()
            self.drop_state()
        self._known.add(number)

    def drop_state(self) -> None:  # noqa: B027  # most have none
        """Drop the state of all buckets."""

    @abstractmethod
    def reduce(self, number: int, values: Tensor, backend: ReduceBackend) -> None:
        """Sum `values`, (n,) float32 or float64, over the ranks in place, approximately.
        Collective.

        Every rank ends with the same bits. What is not finite on a rank is not finite in the sum.
        """

    @abstractmethod
    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:
        """Return the bytes that `rank` sends, and receives, for a bucket of parameters of
        `shapes`."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return this rank's state by name, to be read."""
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027  # most have none
        """Restore a saved state, with the same buckets; after `prepare`, before `reduce`."""


class Uncompressed(Compressor):
    """No compression."""

    name = "none"

    def reduce(self, number: int, values: Tensor, backend: ReduceBackend) -> None:  # noqa: ARG002
        backend.all_reduce(values)

    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:
        return all_reduce_traffic(count_of(shapes), 4, rank, num_ranks).sent_bytes


def _nothing() -> None:
    """Wait for nothing: the round is complete."""


def count_of(shapes: Sequence[Size]) -> int:
    """Return the number of values in a bucket of parameters of `shapes`."""
    return sum(shape.numel() for shape in shapes)


class Scratch:
    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def bytes(self, name: str, count: int) -> Tensor:
        """Return (count,) uint8; its content stays until the name is used again."""
        memory = self._memory.get(name)
        if memory is None or len(memory) < count:
            memory = self._memory[name] = torch.empty(count, dtype=torch.uint8)
        return memory[:count]

    def floats(self, name: str, count: int) -> Tensor:
        """Return (count,) float32."""
        return self.bytes(name, 4 * count).view(torch.float32)

    def parts(self, name: str, num_bytes: Sequence[int]) -> list[Tensor]:
        """Return one (n,) uint8 for each n, each at the beginning of a cache line."""
        starts = aligned_starts_of(num_bytes, CACHE_LINE_BYTES)
        whole = self.bytes(name, starts[-1])
        return [whole[start : start + n] for start, n in zip(starts, num_bytes, strict=False)]

    @contextmanager
    def as_float32(self, values: Tensor) -> Iterator[Tensor]:
        """Give `values` themselves, or, where they are of another type, a copy that is copied
        back."""
        if values.dtype == torch.float32:
            yield values
            return
        copy = self.floats("float32", len(values))
        copy.copy_(values)
        yield copy
        values.copy_(copy)


def is_finite(values: Tensor) -> bool:
    """Return whether all values are finite, in one pass; a sum that overflows counts as not
    finite."""
    return bool(torch.isfinite(values.sum()))
