"""The option that injects faults, of every command that trains."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Group, Parameter

from phalanx.run.fault_schedule import INJECT, parse_injections

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
