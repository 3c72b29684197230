"""Options of commands that start ranks: injected faults, and what becomes of lost ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Group, Parameter

from phalanx.run.fault_schedule import INJECT, parse_injections

LOSSES = Group("Losses", sort_key=7)

Restarts = Annotated[
    int,
    Parameter(
        name="--restarts",
        help="Start the ranks again when some of them, their launcher or nodes are lost, on the "
        "hosts that answer and from the newest complete checkpoint, at most so often an hour "
        "(docs/survival.md).",
        group=LOSSES,
    ),
]

MemoryCheckpointSeconds = Annotated[
    float | None,
    Parameter(
        name="--memory-checkpoint-seconds",
        help="--restarts: also copy the state into the memory of the nodes, whenever so much time "
        "has passed. A restart begins from such a copy where it is newer than the checkpoints on "
        "the disk (docs/survival.md).",
        group=LOSSES,
    ),
]

FAULTS = Group("Faults", sort_key=9)
Inject = Annotated[
    tuple[str, ...],
    Parameter(
        name="--inject",
        help="Inject faults, to see what they cost: `kill:15` sends SIGKILL every 15 s on average "
        "to a random rank of those that live, never the last; `stop:15` SIGSTOP, for 5 s; "
        "`terminate:15` SIGTERM. A seed behind a second colon draws others: `kill:15:7`; a third "
        "one has the pause of a stop: `stop:15:7:2`, or `never`. May be given several times.",
        negative="",
        group=FAULTS,
    ),
]


def take_injections(texts: Sequence[str], ranks: int | None) -> None:
    """Have the ranks that are started inject faults into themselves. ranks: None: not known.

    Raises: UserError for faults that cannot be injected.
    """
    if texts:
        parse_injections(texts, ranks)
        os.environ[INJECT] = " ".join(texts)
