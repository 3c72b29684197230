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
        help="Restart when ranks, their launcher or nodes are lost, on the hosts that answer and "
        "from the newest complete checkpoint, at most this many times per hour "
        "(docs/survival.md).",
        group=LOSSES,
    ),
]

MemoryCheckpointSeconds = Annotated[
    float | None,
    Parameter(
        name="--memory-checkpoint-seconds",
        help="--restarts: copy the state into the memory of the nodes, too, every this many "
        "seconds. A restart begins from such a copy if it is newer than the checkpoints on the "
        "disk (docs/survival.md).",
        group=LOSSES,
    ),
]

FAULTS = Group("Faults", sort_key=9)
Inject = Annotated[
    tuple[str, ...],
    Parameter(
        name="--inject",
        help="Inject faults, to see what they cost: `kill:15` sends SIGKILL to a random rank every "
        "15 s on average, never to the last; `stop:15` SIGSTOP, for 5 s; `terminate:15` SIGTERM. A "
        "second colon sets the seed: `kill:15:7`; a third one the pause of a stop: `stop:15:7:2`, "
        "or `never`. Repeatable.",
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
