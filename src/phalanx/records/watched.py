"""Lines that `phalanx check` has a rank write: its data, losses and parameters, step by step."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.records.regular_file import read_regular

CHECK_SETUP = "PHALANX_CHECK_SETUP"
"""A `CheckSetup` as JSON, in the environment of the ranks."""


class CheckSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Options by which the ranks of one start are watched."""

    folder: str
    steps: int
    seed: int
    """Seed of NumPy's and Python's generators, which a program may have left as they are."""
    is_double: bool
    """True if model and data are float64."""
    micro_batches: int | None = None
    """Micro-batches of a global batch, if the program does not say."""


class TensorState(NamedTuple):
    """A tensor in two numbers, by which two of them are compared."""

    name: str
    norm: float
    product: float
    """Product with a fixed vector."""


class WatchedStart(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """A rank before its first step."""

    parameters: list[TensorState]
    batch_norm: list[str]
    """Layers that normalise each micro-batch by itself."""
    has_fixed_cut: bool
    """True if the program says how many micro-batches a global batch has."""
    is_sharded: bool


class WatchedStep(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A rank after a step."""

    step: int
    loss_sum: float
    """Sum over this rank's samples; that of all ranks ÷ `global_samples` is the mean."""
    global_samples: int
    data: dict[int, int]
    """Sum of the words of each micro-batch, which adds up over any cut, modulo 2⁶⁴."""
    rates: list[float]
    draws: bool
    """True if the loop's body has drawn random numbers."""
    keeps_gradient: str
    """A parameter whose gradient is in its optimizer's state; else empty."""
    changes: list[TensorState]
    """Changes of the parameters since the start."""


class WatchedMetrics(msgspec.Struct, frozen=True, kw_only=True, tag="metrics"):
    """Values that the program has logged after a step."""

    step: int
    values: dict[str, float]


Watched = WatchedStart | WatchedStep | WatchedMetrics


class WatchedRank(NamedTuple):
    """All that a rank has written."""

    start: WatchedStart
    steps: list[WatchedStep]
    metrics: dict[tuple[int, str], float]
    """Values by step and name."""


def watched_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's lines."""
    return folder / f"watched-{rank}.jsonl"


def write_watched(path: Path, line: Watched) -> None:
    """Append a line."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def read_watched(folder: Path, ranks: int) -> list[WatchedRank] | None:
    """Return what the ranks have written of a program's first run; None where one has begun
    none."""
    found = []
    for rank in range(ranks):
        path = watched_file(folder, rank)
        if not path.exists():
            return None
        lines = msgspec.json.Decoder(Watched).decode_lines(read_regular(path))
        first = next((line for line in lines if isinstance(line, WatchedStart)), None)
        if first is None:
            return None
        of_first = list(takewhile(lambda line: not isinstance(line, WatchedStart), lines[1:]))
        logged = [line for line in of_first if isinstance(line, WatchedMetrics)]
        found.append(
            WatchedRank(
                first,
                [line for line in of_first if isinstance(line, WatchedStep)],
                {
                    (each.step, name): value
                    for each in logged
                    for name, value in each.values.items()
                },
            )
        )
    return found
