"""Options of `phalanx.start` that few programs need, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from phalanx.checkpoints.manifest import Value
from phalanx.records.schema import Setting
from phalanx.run.check_values import check_fields

Metrics = Callable[[int, dict[str, float]], None]
"""Function of the number of an update and the metrics that `run.log` got after it."""


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
    options: Mapping[str, Value] = field(default_factory=dict)
    """The program's own options that decide its numbers, by its names for them: a checkpoint of
    others is refused."""
    allow_changes: bool = False
    """True if a run resumes although these options, the optimizer's or others differ; those of now
    hold."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def given(self) -> str:
        """Return the first option of the writing that is not as by default, as it was given; empty:
        none."""
        writing = fields(self)[:4]
        different = (each for each in writing if getattr(self, each.name) != each.default)
        return next((f"{each.name}={getattr(self, each.name)}" for each in different), "")


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """A run as its records have it, where the program knows better than `phalanx.start`."""

    kind: str
    """Kind of the run, such as `train`."""
    config: Mapping[str, object]
    """Every option of the program."""
    setting: Setting
    is_begun: bool = False
    """True if the process that started the ranks keeps `run.json`: they add their events."""
    validation_samples: int = 0
    resident_before: int | None = None
    """Bytes of the process before the model was made."""
    targets_per_sample: int = 1
    """Predictions that a sample asks for, such as the tokens of a text."""


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
    counts_correct: bool = False
    """The outputs of `run.step` are logits of classes, and targets their numbers: count those whose
    largest is right, for the accuracy."""
    description: RunDescription | None = None
    """Description of the run; None: made of the arguments of `phalanx.start`."""

    def __post_init__(self) -> None:
        check_fields(self)
