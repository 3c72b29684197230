"""`phalanx bench`."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import App, Parameter

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.job import new_folder, run_bench
from phalanx.cli.as_json import print_measurement
from phalanx.cli.console import Json, interruption_noted, new_console
from phalanx.cli.hosts import HostFile, Hosts, take_hosts
from phalanx.cli.lazy import add_command
from phalanx.cli.preflight import Preflight, preflight_nodes
from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.detect import detect
from phalanx.report.collectives import read_collectives

app = App(name="bench", help="Benchmark collectives and storage against other libraries.")
add_command(app, "io", "phalanx.cli.bench_io:io")
add_command(app, "machine", "phalanx.cli.bench_machine:machine")


@app.command
def collectives(
    *,
    config: Annotated[  # frozen, so it may be a default
        CollectivesConfig, Parameter(name="*", consume_multiple=True, negative_iterable=())
    ] = CollectivesConfig(),  # noqa: B008
    json_: Json = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
) -> None:
    """Compare the speed of collectives in Phalanx, the MPI library, Gloo and NCCL.

    Measures all paths in one job, in turn, checks every result, and compares them with the limits
    of this machine's memory and flags. Ends with a table, findings and a page.

    For example:

        phalanx bench collectives

        phalanx bench collectives --sizes 64KB,1MB,25MB --ranks 4

        phalanx bench collectives --collectives all --paths phalanx,mpi --json
    """
    launched = detect(os.environ)
    if launched:
        raise UserError(
            f"{launched.launcher} started this process, but phalanx bench starts its ranks itself: "
            f"phalanx bench collectives --ranks {launched.world_size}"
        )
    console = new_console(json_)
    take_hosts(hosts, hostfile, console, config.ranks)
    folder = config.output or new_folder(config)
    if preflight:
        preflight_nodes(config.ranks, console, folders=[folder])
    with interruption_noted(console, f"records in {folder}"):
        run_bench(config, folder, console=console)
    print_measurement(folder, console, json_)
    if wrong := sum(row["wrong"] for row in read_collectives(folder).rows):
        raise RunFailedError(f"{wrong:,} elements of results were wrong; the table shows whose")
