"""Micro-batches, as a program sees them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor


class EpochEnd:
    """End of an epoch that is found by reading on; the answer stays when the data go on."""

    def __init__(self, ask: Callable[[], bool], agree: Callable[[], bool]) -> None:
        """ask: returns whether this rank has no more. agree: the same, as the ranks agree."""
        self._ask, self._agree = ask, agree
        self._answer: bool | None = None
        self._is_agreed = False

    def is_here(self) -> bool:
        """Return whether this rank has no more; one item is read ahead at most. Not collective."""
        if self._answer is None:
            self._answer = self._ask()
        return self._answer

    def agree(self) -> bool:
        """Return the same after the step, compared between the ranks. Collective."""
        if not self._is_agreed:
            self._answer, self._is_agreed = self._agree(), True
        return self.is_here()


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that this rank computes together, as the data set puts them together.

    `inputs` and `targets` are the two parts of data of pairs; iterating yields the parts, as a
    `DataLoader` does: `for inputs, targets in run:`.

    Example::

        run = phalanx.start(model, optimizer, data, batch_size=32)
        for batch in run:
            loss = criterion(run.model(batch.inputs), batch.targets)
            run.backward(loss)
    """

    data: Any
    """A tensor, a tuple, a dictionary, or whatever the data's collation makes."""
    num_samples: int
    """0 of a padding micro-batch, whose gradient counts nothing."""
    epoch: int
    """Number of the epoch, from 0."""
    step: int
    """Number of the update in the run, from 0."""
    number: int
    """Number in its global batch, from 0."""
    ends_step: bool
    """The optimizer steps in the `backward` of this micro-batch."""
    end: bool | EpochEnd
    """Ends the epoch, or finds out."""
    global_samples: int
    """Samples of its global batch, over all ranks."""
    indices: Sequence[int] | Tensor | None = None
    """Numbers of its samples in the data set, if these have numbers."""
    optimizer: str | None = None
    """Name of the only one that its step trains, where `phalanx.start` was given `alternate`."""

    @property
    def ends_epoch(self) -> bool:
        """True for this rank's last micro-batch of an epoch, once per epoch on every rank.

        An iterable is read one item ahead for it where `steps` does not tell: asked before
        `backward`, that item is made before the update.
        """
        return self.end if isinstance(self.end, bool) else self.end.is_here()

    def agree_on_end(self) -> bool:
        """Return `ends_epoch` after the step, as all ranks find it. Collective."""
        return self.end if isinstance(self.end, bool) else self.end.agree()

    @property
    def inputs(self) -> Any:
        """First part of a batch of several parts, else all of it; if the data are a dictionary, its
        `inputs`, or all but `targets`."""
        return inputs_of(self.data)

    @property
    def targets(self) -> Any:
        """Second part of a batch of several parts; if the data are a dictionary, its `targets`."""
        return targets_of(self.data)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the parts of the data; where they have one, over that."""
        return iter(self.data if isinstance(self.data, (tuple, list)) else (self.data,))


def inputs_of(data: Any) -> Any:
    """Return the inputs of a batch as the data put it together, see `MicroBatch.inputs`."""
    if isinstance(data, dict):
        rest = {name: value for name, value in data.items() if name != "targets"}
        return rest.get("inputs", rest)
    return data[0] if isinstance(data, (tuple, list)) else data


def targets_of(data: Any) -> Any:
    """Return the targets of such a batch, see `MicroBatch.targets`."""
    return data["targets" if isinstance(data, dict) else 1]


class Epoch:
    """One pass over the data: an iterable of this rank's micro-batches, iterated once.

    Attributes:
        number: Number of the epoch, from 0; a resumed run begins with a later one.
    """

    def __init__(self, number: int, batches: Iterator[MicroBatch]) -> None:
        """number: from 0, also where a resumed run begins later."""
        self.number, self._batches = number, batches

    def __iter__(self) -> Iterator[MicroBatch]:
        return self._batches


class Position(NamedTuple):
    """Position of a run between two steps, for any number of ranks."""

    epoch: int = 0
    """Number of the epoch, from 0."""
    seen: int = 0
    """Samples of that epoch that all ranks have computed."""
    step: int = 0
    """Number of the next update."""


BEGINNING = Position()


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Length of a run, and where it begins."""

    batch_size: int
    """Samples of the global batch."""
    epochs: int = sys.maxsize
    steps: int | None = None
    """Updates after which the run ends, within the epochs; None: their number."""
    start: Position = BEGINNING
    resumes: bool = False
    """True if it was asked to resume, if there is a checkpoint."""
    sums: tuple[float, int] = (0.0, 0)
    """Loss and samples of the epoch before `start`, over all ranks."""
    rebalances: bool = False
    """True if slow ranks of a bitwise run get fewer micro-batches."""
    ends_with_epoch: bool = False
    """True if the program ends with the first epoch, as if it were asked to stop."""
    agree: Callable[[int], None] | None = None
    """Compares the order of samples of an epoch between the ranks. Collective."""
