"""Options of `phalanx.start` that few programs need, as values; and checks of its arguments, and of
the fields of these, by their annotations."""

from __future__ import annotations

import collections.abc
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from phalanx.checkpoints.manifest import Value
from phalanx.errors import UserError
from phalanx.records.schema import Setting
from phalanx.run.memory import resident_bytes

WORDS: dict[Any, str] = {
    bool: "is neither True nor False",
    int: "is not a whole number",
    float: "is not a number",
    str: "is not text",
    Path: "is not a path",
    dict: "is not a dictionary of arguments of DataLoader",
    collections.abc.Mapping: "is not a mapping of options to values",
    collections.abc.Sequence: "is not a sequence of names of optimizers",
    collections.abc.Callable: "is not a function",
}
"""Words for a value that is none of a type."""
POSITIVE: dict[Any, str] = {int: f"{WORDS[int]} from 1", float: "is not a finite number above 0"}


def check_arguments(
    function: Callable[..., Any], given: Mapping[str, object], *, without: tuple[str, ...]
) -> None:
    """Raise UserError for the first argument whose value is none of the types of its annotation.

    A number is positive, but for a seed. without: arguments that have checks of their own.
    """
    hints = get_type_hints(function)
    for name, value in given.items():
        if name not in without and (
            words := misfit(value, hints[name], is_positive=name != "seed")
        ):
            raise UserError(f"{name}={shown(value)} {words}")


def check_fields(options: Any) -> None:
    """Raise UserError for the first field of a dataclass whose value is none of its types. A number
    is positive."""
    hints = get_type_hints(type(options))
    for each in fields(options):
        value = getattr(options, each.name)
        if words := misfit(value, hints[each.name], is_positive=True):
            raise UserError(f"{type(options).__name__}({each.name}={shown(value)}): it {words}")


def shown(value: object) -> str:
    """Return a value in at most one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def misfit(value: object, hint: Any, *, is_positive: bool = False) -> str:
    """Return what is wrong with a value of a type; empty: nothing. is_positive: numbers are."""
    kinds = list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]
    if any(_fits(value, kind, is_positive=is_positive) for kind in kinds):
        return ""
    kind = next((k for k in kinds if k is Path), kinds[0])
    if get_origin(kind) is Literal:
        choices = [*["None"] * (NoneType in kinds), *get_args(kind)]
        if len(choices) == 2:
            return f"is neither {choices[0]} nor {choices[1]}"
        return f"is not one of {', '.join(map(str, choices))}"
    if get_args(kind)[1:] not in ((), (Any,)) and get_origin(kind) is collections.abc.Mapping:
        return "is not a mapping of names to numbers and texts"
    kind = get_origin(kind) or kind
    words = POSITIVE.get(kind) if is_positive else None
    return words or WORDS.get(kind) or f"is not a phalanx.{kind.__name__}"


def _fits(value: object, kind: Any, *, is_positive: bool) -> bool:
    if kind in (None, NoneType):
        return value is None
    if kind is Any:
        return True
    if kind in (int, float):
        types = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, types):
            return False
        return not is_positive or 0 < value < math.inf
    if kind is Path:
        return isinstance(value, os.PathLike)
    origin = get_origin(kind) or kind
    if origin is Literal:
        return type(value) in (str, int) and value in get_args(kind)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is collections.abc.Sequence and isinstance(value, str):
        return False
    if not isinstance(value, origin):
        return False
    item, *of_values = get_args(kind) if origin in _CONTAINERS else (object,)
    items: Any = value if origin in _CONTAINERS else ()
    values = items.values() if of_values and of_values != [Any] else ()
    return all(isinstance(each, item) for each in items) and all(
        isinstance(each, *of_values) for each in values
    )


_CONTAINERS = (collections.abc.Mapping, collections.abc.Sequence, dict)


Metrics = Callable[[int, dict[str, float]], None]
"""Function of the number of an update and the metrics that `run.log` got after it."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Times of checkpoints beside those after each epoch, and the number of those that stay.

    Example::

        often = phalanx.Checkpoints(every_steps=500, keep=3)
        run = phalanx.start(
            model, optimizer, data, batch_size=4, checkpoint_dir="saved", checkpoints=often
        )
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))

    Raises:
        UserError: For a value that its field does not take.
    """

    every_steps: int | None = None
    """Steps of an epoch after which one is written, too."""
    every_seconds: float | None = None
    """Time since the last one after which one is written, too."""
    keep: int | None = None
    """Number of valid ones that stay, the newest; None: those of epochs, and two within them."""
    in_thread: bool = True
    """A thread writes a copy of the state while training continues; False: training waits, and
    needs no memory for a copy."""
    options: Mapping[str, Value] = field(default_factory=dict)
    """Options of the program that decide its numbers, by name: a checkpoint with others is
    refused."""
    allow_changes: bool | Sequence[str] = False
    """True if a run resumes although these options, the optimizer's or others differ; those of now
    hold. Or the names of those of the program's own options that may."""

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
    """A run as its records have it, where the program knows better than `phalanx.start`. Made
    before the model, whose memory is counted from then on.

    Example::

        described = phalanx.RunDescription(config={"width": 256}, validation_samples=40)
        run = phalanx.start(
            model, optimizer, data, batch_size=4, run_dir="runs/described",
            records=phalanx.Records(description=described),
        )
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))
    """

    kind: str = "program"
    """Kind of the run, such as `train`."""
    config: Mapping[str, object] = field(default_factory=dict)
    """Every option of the program."""
    setting: Setting | None = None
    """Everything that decides the run's numbers; None: made of the arguments of `phalanx.start`."""
    is_begun: bool = False
    """True if the process that started the ranks keeps `run.json`: they add their events."""
    validation_samples: int = 0
    """Number of samples that the program evaluates on."""
    targets_per_sample: int = 1
    """Predictions that a sample asks for, such as the tokens of a text."""
    resident_before: int | None = field(default_factory=resident_bytes)
    """Bytes of the process before the model was made; None: not known."""


@dataclass(frozen=True, kw_only=True)
class Records:
    """Records beside those of steps, epochs and metrics, and a function that gets the metrics.

    Example::

        more = phalanx.Records(trace=True)
        run = phalanx.start(
            model, optimizer, data, batch_size=4, run_dir="runs/first", records=more
        )
        for batch in run:
            run.backward(criterion(run.model(batch.inputs), batch.targets))

    Raises:
        UserError: For a value that its field does not take.
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
