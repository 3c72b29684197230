"""`phalanx launch`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.console import interruption_noted
from phalanx.cli.hosts import HostFile, Hosts
from phalanx.cli.inject import Inject, take_injections
from phalanx.cli.preflight import Preflight, preflight_nodes
from phalanx.cli.restarts import Patience, Restarts
from phalanx.cli.submit import LOCALLY, Submit, check_used, write_job
from phalanx.errors import UserError
from phalanx.jobs.launch_program import program_words
from phalanx.jobs.patience import check_patience
from phalanx.jobs.program_job import ProgramJob
from phalanx.jobs.record import default_folder
from phalanx.jobs.restarts import check_restarts, supervise
from phalanx.launch.allocation import allocation, check_ranks, use_hosts
from phalanx.launch.cores import usable_cores
from phalanx.launch.detect import refuse_launcher
from phalanx.launch.installation import find_mpi
from phalanx.launch.survival import check_survival
from phalanx.records.files import record_file
from phalanx.records.schema import Run
from phalanx.run.defaults import RUN_DIR


def launch(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True)],
    ranks: Annotated[int | None, Parameter(name=["--ranks", "-n"])] = None,
    threads: int | None = None,
    log_dir: Path | None = None,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
    survive: Annotated[bool, Parameter(negative="")] = False,
    patience: Patience = None,
    restarts: Restarts = 0,
    inject: Inject = (),
    batch: Submit = LOCALLY,
) -> None:
    """Run a program of yours on ranks of this machine, of --hosts or of the allocation, by the MPI
    at hand.

    Ranks share the cores: none is bound, and PyTorch computes in each by cores ÷ ranks threads. The
    output of rank 0 is shown, that of each rank kept in a file, and the first failure is named.

    For example:

        phalanx launch -n 2 train.py --epochs 3

        phalanx launch -n 4 --threads 1 -m my_package.train

        phalanx launch --hosts n0:4,n1:4 train.py

        phalanx launch --log-dir logs train.py

        phalanx launch --submit slurm --nodes 2 -n 8 --threads 4 --time 8:00:00 train.py

    Parameters
    ----------
    words
        Program and its arguments: `program.py …`, `-m module …`, or a command. Options of launch
        stand before it.
    ranks
        How many; default: one a slot of the nodes, or one a core of this machine.
    threads
        Compute threads of each rank; default: cores of its node ÷ ranks there.
    log_dir
        New folder for the output of the ranks, and for the records of a program that calls
        `phalanx.start`; default: runs/launch/TIME-PROGRAM.
    survive
        Let the others go on when a rank dies, in a program that can (docs/survival.md); Open MPI.
    """
    check_patience(patience, survive=survive)
    check_restarts(restarts, os.environ)
    mpi = find_mpi(os.environ) if survive else None
    if survive:
        check_survival(mpi, os.environ)
    refuse_launcher("launch", os.environ)
    command = program_words(words)
    use_hosts(hosts, hostfile, os.environ)
    if batch.submit is not None and ranks is None:
        ranks = batch.nodes
    cores, nodes = usable_cores(), allocation(os.environ)
    ranks = (sum(nodes.slots) or cores) if ranks is None else ranks
    for name, number in (("--ranks", ranks), ("--threads", threads)):
        if number is not None and number < 1:
            raise UserError(f"{name} {number} must be at least 1")
    take_injections(inject, ranks)
    is_second = words[0] in ("-m", "phalanx") and len(words) > 1
    name = words[1] if is_second else Path(words[0]).stem
    if batch.submit is not None:
        _check_for_job(hosts=hosts, hostfile=hostfile, log_dir=log_dir)
        flags = ["--survive"] * survive + ["--restarts", str(restarts)] * (restarts > 0)
        flags += [] if patience is None else ["--patience", f"{patience:g}"]
        flags += [word for text in inject for word in ("--inject", text)]
        write_job(batch, words, name=name, ranks=ranks, threads=threads, flags=flags)
        return
    check_used(batch)
    check_ranks(ranks, os.environ)
    folder = log_dir or default_folder("launch", name)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--log-dir {folder} is not empty: name another")
    if nodes.nodes:
        print(f"phalanx: {nodes.describe(ranks)}", file=sys.stderr)
    if preflight:
        preflight_nodes(
            ranks,
            Console(stderr=True, soft_wrap=True, highlight=False),
            folders=[folder],
            files=[Path(words[0])] if words[0].endswith(".py") else [],
            prefix="phalanx: ",
        )
    with interruption_noted(Console(stderr=True, soft_wrap=True), f"output of the ranks: {folder}"):
        program = ProgramJob(
            words=command,
            threads=threads,
            mpi=mpi or find_mpi(os.environ),
            output=sys.stdout.buffer,
            environment=_environment,
            survive=survive,
            patience_s=patience,
            is_supervised=restarts > 0,
        )
        lost = supervise(program, folder, ranks, restarts)
    _tell_end(folder, lost, inject)


def _check_for_job(**given: object) -> None:
    """Raises: UserError for an option that a job file has no use for."""
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option}: a job file leaves that to the job; leave it out")


def _tell_end(folder: Path, lost: Sequence[int], inject: Sequence[str]) -> None:
    """Say without whom the job has come to its end, and where its records are."""
    if lost:
        who = f"rank{'s' * (len(lost) > 1)} {', '.join(map(str, lost))} died"
        print(f"phalanx: {who}, and the others went on to the end", file=sys.stderr)
    if record_file(folder, Run).exists():
        print(f"phalanx: records of the run: phalanx report {folder}", file=sys.stderr)
    elif inject:
        print(
            "phalanx: --inject: no fault was injected: the program does not train by phalanx.start",
            file=sys.stderr,
        )


def _environment(folder: Path) -> dict[str, str]:
    """Return what the ranks find beside our variables: the place of records, and our width."""
    wanted = {RUN_DIR: str(folder.absolute())}
    if sys.stdout.isatty():
        wanted["COLUMNS"] = str(shutil.get_terminal_size().columns)
    return {name: value for name, value in wanted.items() if name not in os.environ}
