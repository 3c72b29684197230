"""`phalanx trace`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from phalanx.cli.hosts import HostFile, Hosts
from phalanx.cli.preflight import Preflight
from phalanx.cli.train import train
from phalanx.cli.train_options import OPTIONS, Options


def trace(
    *,
    steps: Annotated[int, Parameter(group="Tracing")] = 20,
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

    Parameters
    ----------
    steps
        Number of steps, including the first ones, which take longer.
    """
    train(options=options, hosts=hosts, hostfile=hostfile, preflight=preflight, steps=steps)
