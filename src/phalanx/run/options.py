"""Options of `phalanx.start` that few programs need, as values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from phalanx.errors import UserError
from phalanx.run.check_arguments import shown

Metrics = Callable[[int, dict[str, float]], None]
"""Of the number of an update, and the metrics that `run.log` was given after it."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Times of checkpoints beside those after each epoch, and the number of those that stay.

        often = phalanx.Checkpoints(every_steps=500, keep=3)
        run = phalanx.start(
            model, optimizer, data, batch_size=4, checkpoint_dir="saved", checkpoints=often
        )
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))

    Raises:
        UserError: For a value that is none of its option's.
    """

    every_steps: int | None = None
    """Steps of an epoch after which one is written, too."""
    every_seconds: float | None = None
    """Time since the last one after which one is written, too."""
    keep: int | None = None
    """Number of valid ones that stay, the newest; None: those of epochs, and two within them."""
    in_thread: bool = True
    """A thread writes a copy of the state while training goes on; False: training waits, and needs
    no memory for a copy."""

    def __post_init__(self) -> None:
        for name in ("every_steps", "keep"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise _wrong(self, name, "is no whole number from 1")
        seconds = self.every_seconds
        if seconds is not None and not (_is_number(seconds) and 0 < seconds < math.inf):
            raise _wrong(self, "every_seconds", "is no finite number above 0")
        if not isinstance(self.in_thread, bool):
            raise _wrong(self, "in_thread", "is neither True nor False")

    @property
    def given(self) -> str:
        """Return the first option that is not as by default, as it was given; empty: none."""
        different = (each for each in fields(self) if getattr(self, each.name) != each.default)
        return next((f"{each.name}={getattr(self, each.name)}" for each in different), "")


@dataclass(frozen=True, kw_only=True)
class Records:
    """Records beside those of steps, epochs and metrics, and a function that is told of metrics.

        more = phalanx.Records(trace=True)
        run = phalanx.start(
            model, optimizer, data, batch_size=4, run_dir="runs/first", records=more
        )
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))

    Raises:
        UserError: For a value that is none of its option's.
    """

    on_metrics: Metrics | None = None
    """Called on rank 0 with the number of the update and what `run.log` is given."""
    trace: bool = False
    """Record what every rank does when, too; `phalanx report` makes the trace of all ranks."""

    def __post_init__(self) -> None:
        if self.on_metrics is not None and not callable(self.on_metrics):
            raise _wrong(self, "on_metrics", "is no function")
        if not isinstance(self.trace, bool):
            raise _wrong(self, "trace", "is neither True nor False")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong(options: object, name: str, words: str) -> UserError:
    value = shown(getattr(options, name))
    return UserError(f"{type(options).__name__}({name}={value}): it {words}")
