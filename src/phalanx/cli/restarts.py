"""Options of commands that start ranks: what becomes of lost ones."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

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
