"""The examination of nodes before ranks are started on them, of every command that does so."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.hosts import NODES
from phalanx.data.datasets.catalog import DatasetChoice
from phalanx.launch.allocation import allocation
from phalanx.launch.installation import find_mpi
from phalanx.train.config import TrainConfig

if TYPE_CHECKING:  # imports NumPy
    from phalanx.data.sources.pack_description import PackDescription

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


def preflight_nodes(
    ranks: int,
    console: Console,
    *,
    folders: Iterable[Path | None] = (),
    files: Iterable[Path | None] = (),
    data: Iterable[Path | None] = (),
    prefix: str = "",
) -> None:
    """Examine the nodes that `ranks` ranks of MPI are started on; nothing on this machine alone.

    console: takes a line on them, and one on each warning. folders: to write to; files: of the
    program; data: to read. None: none. prefix: of each line. MPI is kept from networks that do
    not lead to all nodes, by variables of this process.
    Raises: UserError naming each node that cannot run them, and the mend.
    """
    if not allocation(os.environ).nodes:
        return
    from phalanx.doctor.nodes.plan import plan_nodes
    from phalanx.doctor.nodes.preflight import examine_nodes, needs_preflight

    mpi = find_mpi(os.environ)
    plan = plan_nodes(
        ranks, mpi, os.environ, cwd=Path.cwd(), folders=folders, files=files, data=data
    )
    if needs_preflight(plan):
        found = examine_nodes(plan, mpi)
        for line in found.lines():
            console.print(f"{prefix}{line}", markup=False)
        os.environ.update(found.variables)


def preflight_training(
    config: TrainConfig, choice: DatasetChoice | PackDescription, folder: Path, console: Console
) -> None:
    """Examine the nodes of a training; nothing where it needs no MPI. folder: of its records.

    Raises: UserError as `preflight_nodes`.
    """
    if not config.uses_mpi or config.ranks is None:
        return
    names = (config.model, config.loss or "", str(config.options().get("tensor_plan") or ""))
    places = [name.rpartition(":")[0] for name in names]
    preflight_nodes(
        config.ranks,
        console,
        folders=[folder, config.checkpoint_dir],
        files=[Path(place) for place in places if place.endswith(".py")],
        data=[config.data, choice.folder if isinstance(choice, DatasetChoice) else None],
    )
