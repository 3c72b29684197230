"""`phalanx bench machine`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from phalanx.bench.machine import COMMENTS, SIZES, measure_machine
from phalanx.bench.sizes import parse_sizes
from phalanx.cli.console import Json, interruption_noted, new_console, print_json
from phalanx.cli.hosts import HostFile, Hosts, take_hosts
from phalanx.cli.preflight import Preflight, preflight_nodes
from phalanx.comm.link import LINK
from phalanx.errors import UserError
from phalanx.jobs.allocation import Allocation, allocation
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.detect import refuse_launcher
from phalanx.jobs.record import default_folder
from phalanx.plan.machine import RANGES, machine_text


def machine(
    file: Annotated[Path, Parameter()] = Path("machine.yaml"),
    /,
    *,
    ranks: int | None = None,
    sizes: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = SIZES,
    price_per_node_hour: float | None = None,
    overwrite: Annotated[bool, Parameter(negative="")] = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
    json_: Json = False,
) -> None:
    """Measure this machine, or nodes, and write a machine file for `phalanx plan`.

    Memory by working set, how much ranks that compute slow each other down, and sums in memory that
    they share: of the first node, which stands for all. Of several nodes also latency and bandwidth
    between pairs, all ranks of both sending at once, and the processor time that messages take.
    Takes half a minute. What it cannot measure is named in the file, to be added by hand.

    For example:

        phalanx bench machine

        phalanx bench machine hpc.yaml --hosts n0:4,n1:4 --price-per-node-hour 1.2

        phalanx bench machine node.yaml --ranks 4 --sizes 1MB,100MB

    Parameters
    ----------
    file
        File to write, in YAML.
    ranks
        Most ranks of the node. Default: one a core; as many as --hosts says.
    sizes
        Bytes of the sums, such as 64KB,1MB,25MB.
    price_per_node_hour
        Price of a node, for the costs that `phalanx plan` shows.
    overwrite
        Write over a file that exists.
    """
    console = new_console(json_)
    _check(file, ranks, price_per_node_hour, os.environ, overwrite=overwrite)
    parse_sizes(sizes)
    take_hosts(hosts, hostfile, console)
    nodes = allocation(os.environ)
    per_node, num_nodes = _ranks_per_node(ranks, nodes), max(1, len(nodes.nodes))
    folder = default_folder("bench", f"machine-{per_node * num_nodes}")
    if preflight:
        preflight_nodes(per_node * num_nodes, console, folders=[folder])
    with interruption_noted(console, f"records kept in {folder}"):
        found = measure_machine(
            per_node,
            num_nodes,
            folder,
            console,
            is_here=num_nodes == 1 and not nodes.has_others,
            sizes=sizes,
            price_per_node_hour=price_per_node_hour,
        )
    text = machine_text(found, COMMENTS)
    file.write_text(text)
    if json_:
        print_json(msgspec.to_builtins(found))
    else:
        console.print(text, markup=False)
    console.print(f"machine file: {file}", markup=False)


def _check(
    file: Path,
    ranks: int | None,
    price_per_node_hour: float | None,
    environ: Mapping[str, str],
    *,
    overwrite: bool,
) -> None:
    """Raise UserError for what cannot be measured or written, before anything is started."""
    refuse_launcher("bench machine", environ)
    if environ.get(LINK):
        raise UserError(f"{LINK} emulates a link, and a machine file is of real ones: unset it")
    if file.suffix not in (".yaml", ".yml"):
        raise UserError(f"{file}: a machine file ends in .yaml")
    if file.exists() and not overwrite:
        raise UserError(f"{file} exists: name another file, or add --overwrite")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise UserError(f"{file} cannot be written: name a file in a folder that can")
    if ranks is not None and ranks < 1:
        raise UserError(f"--ranks must be at least 1, not {ranks}")
    low, high, unit = RANGES["price_per_node_hour"]
    if price_per_node_hour is not None and not low <= price_per_node_hour <= high:
        raise UserError(
            f"--price-per-node-hour must be from {low:g} to {high:g} {unit}, not "
            f"{price_per_node_hour:g}"
        )


def _ranks_per_node(ranks: int | None, nodes: Allocation) -> int:
    """Return the ranks of every node: those of `--ranks`, of `--hosts` or of the allocation, or one
    a core of this machine.

    Raises: UserError for nodes of different numbers, which a machine file does not describe.
    """
    if len(nodes.nodes) < 2 and not nodes.is_named:
        return usable_cores() if ranks is None else ranks
    slots = sorted(set(nodes.slots))
    if len(slots) > 1:
        raise UserError(
            f"{nodes.source} names nodes of {slots[0]} and of {slots[-1]} ranks, and a machine "
            f"file is of equal nodes: name as many on each: {nodes.nodes[0].name}:{slots[0]},…"
        )
    if ranks not in (None, slots[0]):
        raise UserError(
            f"--ranks {ranks}, but {nodes.source} names {slots[0]} on each node: leave --ranks out"
        )
    return slots[0]
