"""What is sent in place of a bucket of gradients, and how the sum is made of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Size, Tensor

from phalanx.comm.traffic import all_reduced


class Rounds(Protocol):
    """Rounds of one sum, in the same order on all ranks. What is returned waits for the round's
    end; until then its tensors must not be touched."""

    overlap: bool
    """Whether a round goes on while others begin."""

    def begin_all_to_all(
        self, outputs: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> Callable[[], None]:
        """As that of `Ranks`; outputs[own rank] may be parts[own rank] itself, which may be written
        meanwhile."""

    def begin_all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> Callable[[], None]:
        """As that of `Ranks`; `part` may be outputs[own rank] itself."""


class Ranks(Protocol):
    """Those among which gradients are summed: a `comm.Group` or a torch.distributed group.

    Tensors are contiguous and lie in CPU memory. All calls are collective, in the same order on all
    ranks, from one thread at a time.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, values: Tensor) -> None:
        """Sum over the ranks, in place."""

    def all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> None:
        """outputs[rank] becomes that rank's `part`; all of one size."""

    def all_to_all(self, outputs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        """outputs[peer] becomes what `peer` has at parts[own rank]; of any sizes."""

    def rounds(self, num_bytes: int) -> AbstractContextManager[Rounds]:
        """For one sum of a vector that is coded in `num_bytes`; the same on every rank."""


class AtOnce:
    """Rounds that have ended when they have begun."""

    overlap = False

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def begin_all_to_all(
        self, outputs: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> Callable[[], None]:
        self._ranks.all_to_all(outputs, parts)
        return _nothing

    def begin_all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> Callable[[], None]:
        self._ranks.all_gather(outputs, part)
        return _nothing


class Compressor(ABC):
    """One rank's side, for all its buckets. What it keeps of a bucket (what was not sent, factors)
    goes by the bucket's number, and is forgotten when a sum was not finite."""

    name: str
    keeps = False
    """Whether what is kept of a step changes later ones."""

    @property
    def words(self) -> str:
        """What is kept fits a compressor of the same words."""
        return self.name

    def prepare(self, number: int, shapes: Sequence[Size]) -> None:  # noqa: B027  # most need none
        """Bucket `number` holds parameters of `shapes`, one after the other. A number that is
        said again means that all buckets are made anew: what was kept of all is forgotten."""

    @abstractmethod
    def reduce(self, number: int, values: Tensor, ranks: Ranks) -> None:
        """`values`, (n,) float32 or float64, become their sum over the ranks, as well as it is
        known: the same bits on every rank. What is not finite on a rank is not finite in the sum.
        Collective."""

    @abstractmethod
    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:
        """That `rank` sends for a bucket of parameters of `shapes`, and as much receives."""

    def kept(self) -> dict[str, Tensor]:
        """What is kept, by name, to be read; of this rank alone."""
        return {}

    def restore(self, kept: Mapping[str, Tensor]) -> None:  # noqa: B027  # most keep nothing
        """Go on from what `kept` said, with the same buckets; after `prepare`, before `reduce`."""

    def kept_bytes(self) -> int:
        """Of memory for what is kept between steps."""
        return sum(tensor.nbytes for tensor in self.kept().values())


class Uncompressed(Compressor):
    """The values themselves."""

    name = "none"

    def reduce(self, number: int, values: Tensor, ranks: Ranks) -> None:  # noqa: ARG002
        ranks.all_reduce(values)

    def sent_bytes(self, shapes: Sequence[Size], rank: int, num_ranks: int) -> int:
        return all_reduced(count_of(shapes), 4, rank, num_ranks).sent_bytes


def _nothing() -> None:
    """There is nothing to wait for."""


def count_of(shapes: Sequence[Size]) -> int:
    """Values in a bucket of parameters of `shapes`."""
    return sum(shape.numel() for shape in shapes)
