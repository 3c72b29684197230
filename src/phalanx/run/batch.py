"""Micro-batches, as a program sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples that this rank computes together, as the data set puts them together.

    For data of pairs `inputs` and `targets` are its two parts:

        run = phalanx.start(model, optimizer, data, batch_size=32)
        for batch in run:
            loss = criterion(run.model(batch.inputs), batch.targets)
            run.backward(loss)

    Its parts are those of the data, as a `DataLoader` gives them: `for inputs, targets in run:`.
    """

    data: Any
    """A tensor, a tuple, a dictionary, or whatever the data's collation makes."""
    num_samples: int
    """0 of a padding micro-batch, whose gradient counts nothing."""
    epoch: int
    """From 0."""
    step: int
    """Number of the update in the run, from 0."""
    number: int
    """In its global batch, from 0."""
    ends_step: bool
    """The optimizer steps in the `backward` of this micro-batch."""
    ends_epoch: bool
    """The last one of this rank in an epoch; true once an epoch on every rank."""
    global_samples: int
    """Of its global batch, over all ranks."""
    optimizer: str | None = None
    """Name of the only one that its step trains, where `phalanx.start` was given `alternate`."""

    @property
    def inputs(self) -> Any:
        """First part of a batch of several parts; all of it, where it has one. Of a dictionary its
        `inputs`, or all but its `targets`."""
        if isinstance(self.data, dict):
            rest = {name: part for name, part in self.data.items() if name != "targets"}
            return rest.get("inputs", rest)
        return self.data[0] if isinstance(self.data, (tuple, list)) else self.data

    @property
    def targets(self) -> Any:
        """Second part of a batch of several parts; of a dictionary its `targets`."""
        return self.data["targets" if isinstance(self.data, dict) else 1]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the parts of the data; where they have one, over that."""
        return iter(self.data if isinstance(self.data, (tuple, list)) else (self.data,))


class Epoch:
    """One pass over the data: this rank's micro-batches of it, iterated once."""

    def __init__(self, number: int, batches: Iterator[MicroBatch]) -> None:
        """number: from 0, also where a resumed run begins later."""
        self.number, self._batches = number, batches

    def __iter__(self) -> Iterator[MicroBatch]:
        return self._batches
