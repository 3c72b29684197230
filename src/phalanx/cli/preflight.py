"""The examination of nodes before ranks are started on them, of every command that does so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.hosts import NODES
from phalanx.jobs.allocation import allocation
from phalanx.jobs.installation import MpiInstallation, find_mpi

if TYPE_CHECKING:  # most commands start no training
    from phalanx.data.datasets.catalog import DatasetChoice
    from phalanx.data.sources.packed import PackDescription
    from phalanx.doctor.nodes.plan import NodePlan
    from phalanx.train.config import TrainConfig

Preflight = Annotated[
    bool,
    Parameter(
        name="--preflight",
        negative="--no-preflight",
        help="Before ranks are started on other nodes, find out in some seconds whether all can "
        "be reached, have the same software, and see which folders.",
        group=NODES,
    ),
]


class NodePaths(TypedDict, total=False):
    """Paths that a job has use for on its nodes; None: not given."""

    folders: Iterable[Path | None]
    """Folders to write to."""
    files: Iterable[Path | None]
    """Files of the program."""
    data: Iterable[Path | None]
    """Data to read."""


def preflight_nodes(ranks: int, console: Console, **paths: Unpack[NodePaths]) -> None:
    """Examine the nodes that `ranks` ranks of MPI are started on; nothing on this machine alone.

    console: takes a line on them, and one on each warning. MPI is kept from networks that do not
    lead to all nodes, by variables of this process.
    Raises: UserError naming each node that cannot run them, and the mend.
    """
    planned = _plan(ranks, paths)
    if planned is not None:
        from phalanx.doctor.nodes.preflight import examine_nodes

        found = examine_nodes(*planned)
        for line in found.lines():
            console.print(line, markup=False)
        os.environ.update(found.variables)


@contextlib.contextmanager
def preflight_beside(
    ranks: int, console: Console, *, is_wanted: bool, prefix: str = "", **paths: Unpack[NodePaths]
) -> Iterator[Callable[[], None]]:
    """Examine the nodes as `preflight_nodes` does, the links between them beside the block.

    prefix: of each line. is_wanted: else nothing is examined.
    Yields: a function that the block, the job of these ranks, calls again and again; it prints the
    lines, and raises UserError where ranks do not meet.
    """
    planned = _plan(ranks, paths) if is_wanted else None
    if planned is None:
        yield lambda: None
        return
    from phalanx.doctor.nodes.beside import examined_beside

    def show(line: str) -> None:
        console.print(f"{prefix}{line}", markup=False)

    with examined_beside(*planned, show) as check:
        yield check


def _plan(ranks: int, paths: NodePaths) -> tuple[NodePlan, MpiInstallation] | None:
    """Return the nodes with what they must have, and the MPI; None where no rank leaves this
    machine."""
    if not allocation(os.environ).nodes:
        return None
    from phalanx.doctor.nodes.plan import plan_nodes
    from phalanx.doctor.nodes.preflight import needs_preflight

    mpi = find_mpi(os.environ)
    plan = plan_nodes(ranks, mpi, os.environ, cwd=Path.cwd(), **paths)
    return (plan, mpi) if needs_preflight(plan) else None


@contextlib.contextmanager
def preflight_training(
    config: TrainConfig,
    choice: DatasetChoice | PackDescription,
    folder: Path,
    console: Console,
    *,
    is_wanted: bool,
) -> Iterator[Callable[[], None]]:
    """Examine the nodes of a training as `preflight_beside`; nothing where it needs no MPI.

    folder: of its records. is_wanted: else nothing is examined.
    """
    from phalanx.data.datasets.catalog import DatasetChoice

    names = (config.model, config.loss or "", str(config.options().get("tensor_plan") or ""))
    places = [name.rpartition(":")[0] for name in names]
    with preflight_beside(
        config.ranks or 1,
        console,
        is_wanted=is_wanted and config.uses_mpi and config.ranks is not None,
        folders=[folder, config.checkpoint_dir],
        files=[Path(place) for place in places if place.endswith(".py")],
        data=[config.data, choice.folder if isinstance(choice, DatasetChoice) else None],
    ) as check:
        yield check
