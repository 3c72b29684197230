"""`phalanx bench machine`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from phalanx.bench.machine import COMMENTS, measure_machine
from phalanx.cli.console import Json, interruption_noted, new_console, print_json
from phalanx.errors import UserError
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.record import default_folder
from phalanx.plan.machine import machine_text


def machine(
    file: Annotated[Path, Parameter()] = Path("machine.yaml"),
    /,
    *,
    ranks: int | None = None,
    price_per_node_hour: float | None = None,
    overwrite: Annotated[bool, Parameter(negative="")] = False,
    json_: Json = False,
) -> None:
    """Measure this machine, and write a machine file for `phalanx plan`.

    Memory by working set, how much ranks that compute slow each other down, and sums in memory that
    they share. Takes half a minute. What it cannot measure, such as the network of a cluster, is
    named in the file, to be added by hand.

    For example:

        phalanx bench machine

        phalanx bench machine hpc.yaml --ranks 4 --price-per-node-hour 1.2

    Parameters
    ----------
    file
        File to write, in YAML.
    ranks
        Most ranks of a node. Default: one a core.
    price_per_node_hour
        Price of a node, for the costs of a plan.
    overwrite
        Write over a file that exists.
    """
    console = new_console(json_)
    if file.suffix not in (".yaml", ".yml"):
        raise UserError(f"{file}: a machine file ends in .yaml")
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists: name another file, or add --overwrite")
    number = usable_cores() if ranks is None else ranks
    if number < 1:
        raise UserError(f"--ranks must be at least 1, not {number}")
    if price_per_node_hour is not None and not price_per_node_hour >= 0:
        raise UserError(f"--price-per-node-hour must not be negative: {price_per_node_hour:g}")
    folder = default_folder("bench", f"machine-{number}")
    with interruption_noted(console, f"records kept in {folder}"):
        found = measure_machine(number, folder, console, price_per_node_hour=price_per_node_hour)
    text = machine_text(found, COMMENTS)
    file.write_text(text)
    if json_:
        print_json(msgspec.to_builtins(found))
    else:
        console.print(text, markup=False)
    console.print(f"machine file: {file}", markup=False)
