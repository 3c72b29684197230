"""`phalanx trace`."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from phalanx.cli.console import new_console
from phalanx.cli.hosts import HostFile, Hosts, refuse_one_process
from phalanx.cli.preflight import Preflight, preflight_training
from phalanx.cli.train_options import OPTIONS, Options
from phalanx.jobs.allocation import use_hosts
from phalanx.jobs.detect import detect, refuse_hosts
from phalanx.jobs.record import this_command
from phalanx.report.trace.show import show_trace
from phalanx.train.few_steps import few_steps
from phalanx.train.job import run_job
from phalanx.train.run import complete, new_folder, title, where


def trace(
    *,
    steps: Annotated[int, Parameter(group="Tracing")] = 20,
    options: Options = OPTIONS,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
) -> None:
    """Make a few steps of a training run and show what every rank does when.

    Prints where each rank's steps go and whom it waits for, and writes one trace of all ranks for
    Perfetto or chrome://tracing. `phalanx train --trace` does the same within a whole run.

    For example:

        phalanx trace --strategy mpi --ranks 2

        phalanx trace --strategy mpi --ranks 2 --overlap on --link 1Gbit/s,1ms --steps 50

    Parameters
    ----------
    steps
        Steps to make, the first ones included, which take longer.
    """
    use_hosts(hosts, hostfile, os.environ)
    config = options.config()
    launched = detect(os.environ)
    if launched:
        refuse_hosts(hosts, hostfile, launched)
    else:
        refuse_one_process(config, hosts, hostfile)
    config, choice = complete(config, launched)
    config = few_steps(config, steps)
    console = new_console()
    if launched:
        from phalanx.train.rank import run_started_by_launcher  # imports torch

        folder = run_started_by_launcher(config, launched)
        if launched.rank == 0 and folder is not None:
            show_trace(folder, console)
        return
    folder = config.run_dir or new_folder(config)
    console.print("\n".join([*where(config), choice.reason, title(config)]), markup=False)
    with preflight_training(config, choice, folder, console, is_wanted=preflight) as check:
        try:
            run_job(
                *(config, folder),
                study="trace",
                command=this_command(),
                console=console,
                check=check,
            )
        finally:
            show_trace(folder, console)
