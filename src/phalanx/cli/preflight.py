"""The examination of nodes before ranks are started on them, of every command that does so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.hosts import NODES
from phalanx.jobs.allocation import allocation
from phalanx.jobs.installation import MpiInstallation, find_mpi

if TYPE_CHECKING:  # few commands start ranks on nodes
    from phalanx.doctor.nodes.requirements import NodeRequirements

Preflight = Annotated[
    bool,
    Parameter(
        name="--preflight",
        negative="--no-preflight",
        help="Before starting ranks on other nodes, check within seconds that all nodes can be "
        "reached and have the same software and folders.",
        group=NODES,
    ),
]


Paths = Iterable[Path | None]
"""Paths that a job has use for on its nodes; None: not given."""


def preflight_nodes(ranks: int, console: Console, *, folders: Paths) -> None:
    """Examine the nodes that `ranks` ranks of MPI are started on; nothing on this machine alone.

    console: takes a line on them, and one on each warning. folders: to write to. MPI is kept from
    networks that do not lead to all nodes, by variables of this process.
    Raises: UserError naming each node that cannot run them, and the mend.
    """
    needed = _required(ranks, folders)
    if needed is not None:
        from phalanx.doctor.nodes.preflight import examine_nodes

        found = examine_nodes(*needed)
        found.show(partial(console.print, markup=False))
        os.environ.update(found.variables)


@contextlib.contextmanager
def preflight_beside(
    ranks: int,
    console: Console,
    *,
    is_wanted: bool,
    prefix: str = "",
    folders: Paths,
    files: Paths,
    data: Paths = (),
) -> Iterator[Callable[[], None]]:
    """Examine the nodes as `preflight_nodes` does, the links between them beside the block.

    prefix: of each line. is_wanted: else nothing is examined. files: of the program. data: to read.
    Yields: a function that the block, the job of these ranks, calls again and again; it prints the
    lines, and raises UserError where ranks do not meet.
    """
    needed = _required(ranks, folders, files, data) if is_wanted else None
    if needed is None:
        yield lambda: None
        return
    from phalanx.doctor.nodes.preflight import examined_beside

    with examined_beside(
        *needed, lambda line: console.print(f"{prefix}{line}", markup=False)
    ) as check:
        yield check


def _required(
    ranks: int, folders: Paths, files: Paths = (), data: Paths = ()
) -> tuple[NodeRequirements, MpiInstallation] | None:
    """Return the nodes with what they must have, and the MPI; None where no rank leaves this
    machine."""
    if not allocation(os.environ).nodes:
        return None
    from phalanx.doctor.nodes.preflight import needs_preflight
    from phalanx.doctor.nodes.requirements import node_requirements

    mpi = find_mpi(os.environ)
    given = {"folders": folders, "files": files, "data": data}
    required = node_requirements(ranks, mpi, os.environ, cwd=Path.cwd(), **given)
    return (required, mpi) if needs_preflight(required) else None
