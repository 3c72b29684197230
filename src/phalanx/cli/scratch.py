"""`phalanx scratch`."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from phalanx.cli.console import interruption_noted, new_console
from phalanx.cli.hosts import HostFile, Hosts, take_hosts
from phalanx.cli.preflight import Preflight, preflight_nodes
from phalanx.errors import UserError
from phalanx.jobs.record import this_command
from phalanx.launch.allocation import use_hosts
from phalanx.launch.detect import refuse_launcher
from phalanx.scratch.config import ScratchConfig, choose_data, complete
from phalanx.scratch.job import new_folder, run_scratch, title


def scratch(
    *,
    config: Annotated[
        ScratchConfig, Parameter(name="*", consume_multiple=True, negative_iterable=())
    ] = ScratchConfig(),  # noqa: B008  # frozen
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
) -> None:
    """Train a network that is written out in NumPy, by a scheme that is written out too.

    The code is to be read: docs/scratch.md says where to begin.

    For example:

        phalanx scratch

        phalanx scratch --scheme alone --hidden 256 128 --activation sigmoid --lr 0.2

        phalanx scratch --scheme server --ranks 6 --servers 2

        phalanx scratch --scheme tensor --ranks 3 --dtype float64
    """
    refuse_launcher("scratch", os.environ)
    console = new_console()
    reason = choose_data(config).reason
    use_hosts(hosts, hostfile, os.environ)
    config = complete(config)
    if config.scheme == "alone" and (hosts or hostfile):
        option = "--hostfile" if hosts is None else "--hosts"
        raise UserError(f"{option} is for several ranks, and --scheme alone is one process")
    take_hosts(None, None, console, config.ranks)
    folder = config.run_dir or new_folder(config)
    console.print(f"{reason}\n{title(config)}", markup=False)
    if preflight and config.ranks and config.scheme != "alone":
        preflight_nodes(config.ranks, console, folders=[folder])
    with interruption_noted(console, f"records kept in {folder}"):
        run_scratch(config, folder, study="scratch", command=this_command(), console=console)
    console.print(f"records in {folder}; `phalanx report {folder}` draws them", markup=False)
