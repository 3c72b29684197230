"""Options of commands that start ranks: what becomes of lost, frozen and slow ones."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

_LOSSES = Group("Losses", sort_key=7)

Restarts = Annotated[
    int,
    Parameter(
        name="--restarts",
        help="Start the ranks again when some of them, their launcher or nodes are lost, on the "
        "hosts that answer and from the newest complete checkpoint, at most so often an hour "
        "(docs/survival.md).",
        group=_LOSSES,
    ),
]

MemoryCheckpointSeconds = Annotated[
    float | None,
    Parameter(
        name="--memory-checkpoint-seconds",
        help="--restarts: also copy the state into the memory of the nodes, whenever so much time "
        "has passed. A restart begins from such a copy where it is newer than the checkpoints on "
        "the disk (docs/survival.md).",
        group=_LOSSES,
    ),
]

Patience = Annotated[
    float | None,
    Parameter(
        name="--patience",
        help="--survive: seconds for which a rank may keep the others waiting; one that is stopped "
        "or stuck for longer is killed, and the others go on. Default: the timeout of the run ends "
        "the wait, and the run.",
        group=_LOSSES,
    ),
]

Spares = Annotated[
    int,
    Parameter(
        name="--spares",
        help="--survive: ranks that are started beside the others, and wait, asleep, to take the "
        "places of those that die (docs/survival.md).",
        group=_LOSSES,
    ),
]

Rebalance = Annotated[
    bool,
    Parameter(
        name="--rebalance",
        negative="",
        help="Give ranks that are slow for long fewer micro-batches, in a bitwise run; the results "
        "stay the same (docs/survival.md).",
        group=_LOSSES,
    ),
]
