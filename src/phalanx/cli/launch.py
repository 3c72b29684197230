"""`phalanx launch`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.console import interruption_noted
from phalanx.cli.hosts import HostFile, Hosts
from phalanx.cli.losses import (
    LOSSES,
    Inject,
    MemoryCheckpointSeconds,
    Restarts,
    take_injections,
)
from phalanx.cli.preflight import Preflight, preflight_beside
from phalanx.cli.submit import LOCALLY, Submit, check_used, write_job
from phalanx.errors import UserError, print_note
from phalanx.jobs.allocation import allocation, use_hosts
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.detect import refuse_launcher
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.launch_program import Launch, program_words
from phalanx.jobs.memory_copies import OPTION as COPIES_OPTION
from phalanx.jobs.patience import check_patience
from phalanx.jobs.program_job import ProgramJob
from phalanx.jobs.ranks import DEFAULT_STOP_S, RankRequest
from phalanx.jobs.record import COMMAND, RUN_DIR, default_folder, this_command
from phalanx.jobs.restarts import check_restarts, supervise
from phalanx.jobs.survival import check_spares, check_survival, ranks_beside
from phalanx.records.files import record_file
from phalanx.records.rank_texts import lost_text
from phalanx.records.schema import Run
from phalanx.run.defaults import REBALANCE


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of the ranks that are started."""

    ranks: Annotated[int | None, Parameter(name=["--ranks", "-n"])] = None
    """Number of ranks. Default: one per slot of the nodes, or per core of this machine."""

    threads: int | None = None
    """Compute threads of each rank; default: cores of its node ÷ ranks there."""

    log_dir: Path | None = None
    """New folder for the output of the ranks, and for the records of a program that calls
    `phalanx.start`; default: runs/launch/TIME-PROGRAM."""

    survive: Annotated[bool, Parameter(negative="")] = False
    """Continue without ranks that die, if the program can (docs/survival.md); Open MPI."""

    spares: Annotated[int, Parameter(group=LOSSES)] = 0
    """--survive: spare ranks, which sleep until they replace a rank that died
    (docs/survival.md)."""

    patience: Annotated[float | None, Parameter(group=LOSSES)] = None
    """--survive: seconds that ranks wait for a stopped or stuck rank before it is killed and the
    run continues without it. Default: the timeout of the run ends the wait and the run."""

    rebalance: Annotated[bool, Parameter(negative="", group=LOSSES)] = False
    """Give fewer micro-batches to ranks that stay slow, in a bitwise run; results do not change
    (docs/survival.md)."""

    restarts: Restarts = 0

    memory_checkpoint_seconds: MemoryCheckpointSeconds = None

    inject: Inject = ()

    grace_s: float = DEFAULT_STOP_S
    """Seconds after SIGTERM in which a program of `phalanx.start` may save a checkpoint and stop;
    then the ranks are killed."""


Options = Annotated[LaunchOptions, Parameter(name="*")]
DEFAULTS = LaunchOptions()


def launch(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True)],
    options: Options = DEFAULTS,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
    batch: Submit = LOCALLY,
) -> None:
    """Run your program on ranks of this machine, of --hosts or of the allocation, with the MPI that
    is installed.

    Ranks share the cores: none is bound to a core, and PyTorch uses cores ÷ ranks threads in each.
    Shows the output of rank 0, writes that of each rank to a file, and names the first failure.

    For example:

        phalanx launch -n 2 train.py --epochs 3

        phalanx launch -n 4 --threads 1 -m my_package.train

        phalanx launch --hosts n0:4,n1:4 train.py

        phalanx launch --log-dir logs train.py

        phalanx launch --submit slurm --nodes 2 -n 8 --threads 4 --time 8:00:00 train.py

    Parameters
    ----------
    words
        Program and its arguments: `program.py …`, `-m module …`, or a command. Put options of
        launch first.
    """
    check_patience(options.patience, survive=options.survive)
    check_spares(options.spares, options.ranks, survive=options.survive)
    check_restarts(options.restarts, options.memory_checkpoint_seconds, os.environ)
    if options.survive:
        check_survival(find_mpi(os.environ), os.environ)
    refuse_launcher("launch", os.environ)
    command = program_words(words)
    use_hosts(hosts, hostfile, os.environ)
    ranks = _number_of_ranks(options, batch)
    check_spares(options.spares, ranks, survive=options.survive)
    take_injections(options.inject, ranks)
    if batch.submit is not None:
        _check_for_job(hosts=hosts, hostfile=hostfile, log_dir=options.log_dir)
        write_job(
            batch,
            words,
            name=_name_of(words),
            ranks=ranks,
            threads=options.threads,
            flags=_flags(options),
            spares=options.spares,
        )
        return
    check_used(batch)
    request = RankRequest(
        ranks=ranks, threads=options.threads, spares=options.spares, survive=options.survive
    )
    request.check_nodes()
    folder = options.log_dir or default_folder("launch", _name_of(words))
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"--log-dir {folder} is not empty: name another")
    with _examined(words, request, folder, preflight=preflight) as check:
        _run(command, request, options, folder, check)


def _flags(options: LaunchOptions) -> list[str]:
    """Return the options that a job file passes on, beside those for ranks and threads."""
    flags: list[str] = []
    for name, value in vars(options).items():
        option = f"--{name.replace('_', '-')}"
        if name in ("ranks", "threads", "log_dir") or value == getattr(DEFAULTS, name):
            continue
        if value is True:
            flags.append(option)
        else:
            number = f"{value:g}" if isinstance(value, float) else str(value)
            texts = value if isinstance(value, tuple) else [number]
            flags += [word for text in texts for word in (option, text)]
    return flags


def _number_of_ranks(options: LaunchOptions, batch: Submit) -> int:
    """Raises: UserError for numbers that are none."""
    nodes, ranks = allocation(os.environ), options.ranks
    if batch.submit is not None and ranks is None:
        ranks = batch.nodes
    if ranks is None:
        slots = sum(nodes.slots)
        ranks = ranks_beside(options.spares, slots) if slots else usable_cores()
    for name, number in (("--ranks", ranks), ("--threads", options.threads)):
        if number is not None and number < 1:
            raise UserError(f"{name} {number} must be at least 1")
    if not options.grace_s > 0:
        raise UserError(f"--grace-s {options.grace_s:g} must be positive")
    return ranks


def _name_of(words: Sequence[str]) -> str:
    """Return the name of a program, for its folder and its job."""
    is_second = Path(words[0]).name in ("-m", "phalanx") and len(words) > 1
    return words[1] if is_second else Path(words[0]).stem


def _examined(
    words: Sequence[str], request: RankRequest, folder: Path, *, preflight: bool
) -> AbstractContextManager[Callable[[], None]]:
    """Print which nodes are used, and have them examined, as `preflight_beside`."""
    for line in request.places:
        print_note(line)
    return preflight_beside(
        request.num_processes,
        Console(stderr=True, soft_wrap=True, highlight=False),
        prefix="phalanx: ",
        is_wanted=preflight,
        folders=[folder],
        files=[Path(words[0])] if words[0].endswith(".py") else [],
    )


def _run(
    command: Sequence[str],
    request: RankRequest,
    options: LaunchOptions,
    folder: Path,
    check: Callable[[], None],
) -> None:
    """Run the program, and say how it ended. folder: of its output and records. check: called
    again and again while its ranks run."""
    with interruption_noted(Console(stderr=True, soft_wrap=True), f"output of the ranks: {folder}"):
        launch = Launch(
            words=command,
            ranks=request,
            output=sys.stdout.buffer,
            environment=_environment(rebalance=options.rebalance),
            patience_s=options.patience,
            check=check,
            grace_s=options.grace_s,
        )
        program = ProgramJob(launch=launch, is_supervised=options.restarts > 0)
        copy_every_s = options.memory_checkpoint_seconds
        lost = supervise(
            program, folder, request.num_ranks, options.restarts, copy_every_s=copy_every_s
        )
    _tell_end(folder, lost, options)


def _check_for_job(**given: object) -> None:
    """Raises: UserError for an option that a job file has no use for."""
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} is not for job files: leave it out")


def _tell_end(folder: Path, lost: Sequence[int], options: LaunchOptions) -> None:
    """Say without whom the job has come to its end, and where its records are."""
    if lost:
        print_note(lost_text(lost))
    if record_file(folder, Run).exists():
        print_note(f"records of the run: phalanx report {folder}")
        return
    why = "the program does not call phalanx.start"
    if options.inject:
        print_note(f"--inject: no fault was injected: {why}")
    if options.memory_checkpoint_seconds is not None:
        print_note(f"{COPIES_OPTION}: no copies were made: {why}")


def _environment(*, rebalance: bool) -> dict[str, str]:
    """Return what the ranks find beside our variables: our width, options, the user's choices."""
    wanted = {COMMAND: shlex.join(this_command())}
    if sys.stdout.isatty():
        wanted["COLUMNS"] = str(shutil.get_terminal_size().columns)
    if rebalance:
        wanted[REBALANCE] = "1"
    chosen = {name: os.environ[name] for name in (RUN_DIR, *wanted) if name in os.environ}
    return {**wanted, **chosen}
