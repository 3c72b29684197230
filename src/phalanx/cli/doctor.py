"""`phalanx doctor`."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from rich.console import Console

from phalanx.cli.console import Json
from phalanx.cli.hosts import HostFile, Hosts
from phalanx.doctor.checks import all_checks
from phalanx.doctor.examine import Finding, examine
from phalanx.doctor.mpi import has_other_nodes
from phalanx.doctor.nodes.checks import check_ranks_together
from phalanx.doctor.show import as_json, show_table
from phalanx.errors import UserError
from phalanx.jobs.allocation import MAX_LOCAL_RANKS, use_hosts
from phalanx.jobs.detect import Launched, detect, refuse_hosts

EXIT_PROBLEM = 1
RUNS = Path("runs")


def doctor(
    *,
    ranks: int | None = None,
    data_root: Path | None = None,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    json_: Json = False,
) -> None:
    """Examine this machine: what is installed, whether ranks find each other, how to fix it.

    With --hosts, or in an allocation, examines the nodes as well: whether they can be reached,
    whether they are alike, how fast their network is. Under mpirun or srun all ranks are examined
    together, and rank 0 prints. Exit code: 1 if there is a problem, 0 if there are only warnings.

    For example:

        phalanx doctor

        phalanx doctor --ranks 8 --json

        phalanx doctor --hosts n0,n1

        srun --mpi=pmix phalanx doctor

    Parameters
    ----------
    ranks
        How many ranks to start on this machine, and to judge cores and shared memory for;
        default: 2.
    data_root
        Folder that holds the data sets. Default: $PHALANX_DATA, then the user's cache folder.
    """
    if ranks is not None and ranks < 1:
        raise UserError(f"--ranks must be at least 1, not {ranks}")
    use_hosts(hosts, hostfile, os.environ)
    launched = detect(os.environ)
    if launched and launched.world_size > 1 and launched.launcher != "torchrun":
        refuse_hosts(hosts, hostfile, launched)
        if ranks is not None:
            raise UserError(
                f"--ranks: {launched.launcher} started {launched.world_size}: leave it out"
            )
        show_together(launched, data_root, json_=json_)
        return
    ranks = 2 if ranks is None else ranks
    if ranks > MAX_LOCAL_RANKS:
        raise UserError(f"--ranks {ranks}: more than {MAX_LOCAL_RANKS} processes on a node")
    checks = all_checks(ranks, RUNS, data_root, has_nodes=has_other_nodes())
    show(list(examine(checks)), json_=json_)


def show_together(launched: Launched, data_root: Path | None, *, json_: bool) -> None:
    """Show, on rank 0, one examination of all ranks that a launcher started."""

    def give_up(findings: list[Finding]) -> None:
        with contextlib.suppress(SystemExit):
            show(findings, json_=json_)
        os._exit(EXIT_PROBLEM)  # the launcher ends the other ranks

    found = check_ranks_together(launched, RUNS, give_up)
    if found is not None:
        local = all_checks(launched.local_world_size or 1, RUNS, data_root, is_launched=True)
        show([*examine(local), *found], json_=json_)


def show(findings: list[Finding], *, json_: bool) -> None:
    """Print the findings; end with exit code 1 where there is a problem."""
    if json_:
        print(as_json(findings))
    else:
        show_table(findings, Console())
    if any(finding.status == "problem" for finding in findings):
        sys.exit(EXIT_PROBLEM)
