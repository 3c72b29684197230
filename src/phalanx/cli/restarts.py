"""The option that has ranks started again after a loss, of commands that start them."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Group, Parameter

Restarts = Annotated[
    int,
    Parameter(
        name="--restarts",
        help="Start the ranks again when some of them, their launcher or nodes are lost, on the "
        "hosts that answer and from the newest complete checkpoint, at most so often an hour "
        "(docs/survival.md).",
        group=Group("Losses", sort_key=7),
    ),
]
