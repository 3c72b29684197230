"""`phalanx train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.as_json import printed_run
from phalanx.cli.console import Json, interruption_noted, new_console
from phalanx.cli.hosts import HostFile, Hosts, refuse_one_process
from phalanx.cli.losses import Inject, MemoryCheckpointSeconds, Restarts, take_injections
from phalanx.cli.preflight import Preflight, preflight_beside
from phalanx.cli.train_options import OPTIONS, ConfigFile, Options
from phalanx.data.datasets.catalog import DatasetChoice
from phalanx.errors import UserError
from phalanx.jobs.allocation import use_hosts
from phalanx.jobs.detect import Launched, detect, refuse_hosts
from phalanx.jobs.live_line import LiveLine
from phalanx.jobs.memory_copies import check_copied
from phalanx.jobs.program_job import ProgramJob
from phalanx.jobs.record import this_command
from phalanx.jobs.restarts import check_restarts, supervise
from phalanx.records.files import read_run
from phalanx.records.rank_texts import lost_text
from phalanx.train.config import DEFAULTS, TrainConfig
from phalanx.train.job import launch_of
from phalanx.train.resume import nothing_to_do
from phalanx.train.run import complete, few_steps, folder_of, title


def train(
    *,
    options: Options = OPTIONS,
    hosts: Hosts = None,
    hostfile: HostFile = None,
    preflight: Preflight = True,
    restarts: Restarts = 0,
    memory_checkpoint_seconds: MemoryCheckpointSeconds = None,
    inject: Inject = (),
    json_: Json = False,
    config_file: ConfigFile = None,  # noqa: ARG001  # read before this is called
    steps: Annotated[int | None, Parameter(parse=False)] = None,  # only for `phalanx trace`
) -> None:
    """Train a model in one process, over MPI or over Gloo.

    Phalanx starts the ranks; under mpirun, srun or torchrun it joins the ranks that these started.
    `--strategy server --help` shows the options of that strategy alone.

    For example:

        phalanx train

        phalanx train --model cnn --strategy mpi --ranks 2 --epochs 3

        phalanx train --config run.toml --seed 3 --json

        phalanx train --strategy shared --ranks 2 --optimizer adamw --weight-decay 0.01

        phalanx train --strategy mpi --checkpoint-dir checkpoints --resume checkpoints

        phalanx train --strategy mpi --hosts n0:4,n1:4

        phalanx train --survive --strategy mpi --ranks 4

        mpirun -n 4 phalanx train --model rnn --strategy mpi
    """
    check_restarts(restarts, memory_checkpoint_seconds, os.environ)
    use_hosts(hosts, hostfile, os.environ)
    config = options.config()
    check_copied(memory_checkpoint_seconds, config.strategy, config.checkpoint_dir)
    take_injections(inject, None)
    launched = detect(os.environ)
    if launched:
        refuse_hosts(hosts, hostfile, launched)
        if steps is not None:
            config = few_steps(complete(config, launched)[0], steps)
        _join(config, launched, json_=json_)
        return
    refuse_one_process(config, hosts, hostfile)
    console = new_console(json_)
    config, choice = complete(config, None)
    if finished := nothing_to_do(config):
        console.print(finished, markup=False)
        return
    config = config if steps is None else few_steps(config, steps)
    take_injections(inject, config.ranks)
    folder = folder_of(config)
    lines = [*config.rank_request().places, choice.reason, title(config)]
    console.print("\n".join(lines), markup=False)
    assert config.ranks is not None, "complete() fills it in"
    with preflight_beside(
        config.ranks,
        console,
        is_wanted=preflight and config.uses_mpi,
        folders=[folder, config.checkpoint_dir],
        files=_own_files(config),
        data=[config.data, choice.folder if isinstance(choice, DatasetChoice) else None],
    ) as check:
        kept, copy_every_s = f"records in {folder}", memory_checkpoint_seconds
        try:
            with (
                interruption_noted(console, kept),
                printed_run(folder, json_),
                LiveLine(console) as line,
            ):
                launch = launch_of(config, line, command=this_command(), check=check)
                job = ProgramJob(
                    launch=launch, is_supervised=restarts > 0, checkpoints=config.checkpoint_dir
                )
                supervise(job, folder, config.ranks, restarts, copy_every_s=copy_every_s)
        finally:
            _show_trace(config, folder, console)
    if lost := read_run(folder).outcome.lost:
        console.print(lost_text(lost), markup=False)
    console.print(f"records in {folder}; `phalanx report {folder}` draws them", markup=False)


def _join(config: TrainConfig, launched: Launched, *, json_: bool) -> None:
    """Train as one of the ranks that the user's own launcher has started.

    Raises: UserError for options that the command which starts ranks would heed.
    """
    if config.patience is not None:
        raise UserError(
            f"--patience {config.patience:g} needs ranks that phalanx started, since it kills "
            f"them, but {launched.launcher} started these: leave out that launcher or --patience"
        )
    if json_:
        raise UserError("--json needs ranks that phalanx started: leave the launcher out")
    if config.grace_s != DEFAULTS["grace_s"]:
        raise UserError(
            f"--grace-s {config.grace_s:g}: {launched.launcher} started the ranks and decides how "
            "long it waits: leave --grace-s out"
        )
    from phalanx.run.failure import ending_program  # these import torch
    from phalanx.train.session import train as train_rank

    with ending_program():
        folder = train_rank(config, launched)
    if launched.rank == 0:
        _show_trace(config, folder, new_console())


def _own_files(config: TrainConfig) -> list[Path]:
    """Return the files of the user's own functions, such as `net.py` of `net.py:build`."""
    names = (config.model, config.loss or "", str(config.options().get("tensor_plan") or ""))
    places = [name.rpartition(":")[0] for name in names]
    return [Path(place) for place in places if place.endswith(".py")]


def _show_trace(config: TrainConfig, folder: Path, console: Console) -> None:
    """Show the trace of a run, where one was recorded."""
    if config.trace:
        from phalanx.report.trace.show import show_trace

        show_trace(folder, console)
