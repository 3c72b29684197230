"""Format of `plan.json`: a training predicted for more ranks or another machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import msgspec

from phalanx.records.schema import SCHEMA_VERSION

PAYS = 1.6
"""Gain of a doubling of the ranks that is called worth it."""


class PlannedRange(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted figure; it lies between the bounds with 90 %."""

    median: float  # middle of the predictions
    low: float  # 5 % are below
    high: float  # 5 % are above


class PlannedRanks(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction for a number of ranks."""

    ranks: int  # number of ranks
    nodes: int  # nodes that these fill
    step_s: PlannedRange  # seconds of a step
    speed_up: PlannedRange  # times the speed of one rank
    epoch_s: PlannedRange  # seconds of the steps of an epoch
    whole_s: PlannedRange  # seconds of the whole training, with what is outside the steps
    parts: dict[str, float]  # seconds of a step, in the middle of all that is unknown
    outside_s: float  # seconds of the whole training outside the steps
    node_hours: float  # node hours of the whole training
    cost: float | None = None  # price of these; None where no price is given
    sent_bytes: float | None = None  # sent by rank 0 in a step; None where there is no formula
    state_bytes: float | None = None  # parameters, gradients, optimizer state of the fullest rank
    peak_bytes: float | None = None  # most memory of a rank's process; None where not measured
    measured_s: float | None = None  # median step of a run on as many ranks; None without one
    unsure: dict[str, float] = {}  # half of the range that each unknown alone makes, as a share


class PlannedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A way to divide the training among a number of ranks."""

    options: str  # options of phalanx train that choose it
    ranks: int  # number of ranks
    step_s: PlannedRange  # seconds of a step
    sent_bytes: float | None = None  # sent by rank 0 in a step
    peak_bytes: float | None = None  # most memory of a rank, else of its state
    too_large_bytes: float = 0.0  # memory that a rank lacks; 0: it fits


class PlannedHelp(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the machine or the program."""

    gain: float  # times the speed at the most ranks
    pays_to: int | None = None  # ranks to which doublings pay with it; None: no more than without


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`plan.json`."""

    schema: int = SCHEMA_VERSION  # version of the format
    command: str  # command that repeats this plan
    started_at: str  # time in UTC
    program: str  # program that is planned
    calibrated: str  # machine and data that it was measured with
    machine: str | None = None  # machine that is planned for; None: this one
    machine_nodes: int | None = None  # nodes that it has
    memory_bytes: float | None = None  # memory that a rank may have
    currency: str | None = None  # currency of all costs
    options: str = ""  # options of phalanx train that choose the strategy
    global_batch: int  # samples of a step, over all ranks
    alone_s: float | None = None  # median step that one rank alone took here, of the whole batch
    epochs: int = 1  # passes over the training samples
    disturbed: float | None = None  # share by which equal steps differed; None: no more than usual
    core_share: float | None = None  # part of the time that threads had a core; None: nearly all
    extrapolated: list[str] = []  # ways in which it goes beyond what was measured
    rows: list[PlannedRanks]  # predictions for growing numbers of ranks
    helps: dict[str, PlannedHelp] = {}  # changes that bring something, the best first
    layouts: list[PlannedLayout] = []  # best first
    left_out: dict[str, str] = {}  # layouts that cannot be, and why
    narrows: str = ""  # run that would make it surer

    @property
    def worth(self) -> tuple[PlannedRanks, PlannedRanks | None]:
        """Return the last row whose doubling brings `PAYS` or more, as those before it do on
        average, and the next one, which brings less; None: all do."""
        found = last_worth([(row.ranks, row.step_s.median) for row in self.rows])
        return self.rows[found], self.rows[found + 1] if found + 1 < len(self.rows) else None


def last_worth(steps: Sequence[tuple[int, float]]) -> int:
    """Return the place of the last of growing rank counts that is worth it, as `Plan.worth`.

    steps: ranks and seconds of a step.
    """
    found = 0
    for place, (before, each) in enumerate(itertools.pairwise(steps), 1):
        if min(_gain_of_doubling(before, each), _gain_of_doubling(steps[0], each)) >= PAYS:
            found = place
    return found


def _gain_of_doubling(before: tuple[int, float], after: tuple[int, float]) -> float:
    """Return by how much a step gets faster with each doubling of the ranks between two rows."""
    (few, few_s), (many, many_s) = before, after
    return float((few_s / many_s) ** (1 / math.log2(many / few)))
