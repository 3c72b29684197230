"""`phalanx trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from phalanx.cli.console import new_console
from phalanx.cli.hosts import HostFile, Hosts
from phalanx.cli.preflight import Preflight
from phalanx.cli.train import train
from phalanx.cli.train_options import OPTIONS, Options
from phalanx.errors import UserError

STEPS = 20


def trace(
    folder: Path | None = None,
    /,
    *,
    steps: Annotated[int, Parameter(group="Tracing")] = STEPS,
    options: Options = OPTIONS,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
) -> None:
    """Run a few steps of training and show what every rank does when.

    Prints where the time of each rank goes and which ranks it waits for, and writes one trace of
    all ranks for Perfetto or chrome://tracing. `phalanx train --trace` does so during a full run.

    For example:

        phalanx trace --strategy mpi --ranks 2

        phalanx trace --strategy mpi --ranks 2 --overlap on --link 1Gbit/s,1ms --steps 50

        phalanx trace runs/plan/mine/ranks-64

    Parameters
    ----------
    folder
        Folder of a traced run, or of an imagined one of `phalanx plan --trace`: shows it, and
        trains nothing.
    steps
        Number of steps, including the first ones, which take longer.
    """
    if folder is None:
        train(options=options, hosts=hosts, hostfile=hostfile, preflight=preflight, steps=steps)
        return
    if (options, steps, hosts, hostfile) != (OPTIONS, STEPS, None, None):
        raise UserError(
            f"phalanx trace {folder} shows what was recorded there, and takes no other options: "
            "leave them out, or the folder"
        )
    from phalanx.report.trace.read import read_traces
    from phalanx.report.trace.show import show_trace

    read_traces(folder)  # raises where there is none
    show_trace(folder, new_console())
