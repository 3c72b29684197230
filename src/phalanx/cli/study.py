"""`phalanx study`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, get_args

from cyclopts import App, Parameter
from rich.console import Console

from phalanx.bench.config import CollectivesConfig, OnMessages
from phalanx.bench.job import run_bench
from phalanx.cli.console import Json, new_console
from phalanx.cli.hosts import HostFile, Hosts, take_hosts
from phalanx.cli.lazy import add_command
from phalanx.cli.preflight import Preflight
from phalanx.cli.study_runs import run_study
from phalanx.data.datasets.catalog import NUM_TRAIN_SAMPLES, resolve
from phalanx.errors import RunFailedError, UserError
from phalanx.launch.cores import usable_cores
from phalanx.models.options import ModelName
from phalanx.records.divergence import has_diverged
from phalanx.records.files import read_bench, read_record
from phalanx.records.schema import JobRecord
from phalanx.report.collectives.rows import ALGORITHMS
from phalanx.report.kinds import summarize
from phalanx.study import compression as compression_study
from phalanx.study import large_batch as large_batch_study
from phalanx.study import parallelism as parallelism_study
from phalanx.study import scaling as scaling_study
from phalanx.study import survival as survival_study
from phalanx.study.compression import CompressionConfig
from phalanx.study.execute import execute, set_aside
from phalanx.study.large_batch import LargeBatchConfig
from phalanx.study.own import keep_file, own_folder, read_file
from phalanx.study.own import plan as plan_own
from phalanx.study.parallelism import ParallelismConfig
from phalanx.study.planned import PlannedRun, own_command, study_folder
from phalanx.study.programs import file_state, plan_program
from phalanx.study.scaling import ScalingConfig
from phalanx.study.scratch import plan_scratch
from phalanx.study.survival import SurvivalConfig
from phalanx.train.data_options import DatasetName

MESSAGE_PATHS: tuple[str, ...] = get_args(OnMessages)
MESSAGE_SIZES = ("64", "1KB", "16KB", "64KB", "256KB", "1MB", "4MB")
OPTIONS = Parameter(name="*", consume_multiple=True, negative_iterable=())

app = App(
    name="study", help="Compare options by measuring them on this machine, and draw a report."
)
add_command(app, "io", "phalanx.cli.study_io:io")


@app.default
def own(
    file: Path | None = None,
    /,
    *,
    study_dir: Path | None = None,
    preflight: Preflight = True,
    json_: Json = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
) -> None:
    """Make the study that a file describes: which axes, which program, which page.

    Parameters
    ----------
    file
        A study in TOML; docs/own_study.md has one.
    study_dir
        Folder of the study. Default: runs/NAME-..., the same for the same file.
    """
    if file is None:
        app.help_print()
        return
    study, console = read_file(file), new_console(json_)
    take_hosts(hosts, hostfile, console)
    folder = study_dir or own_folder(study, file)
    planned = plan_own(study)
    keep_file(file, folder)
    run_study(
        folder,
        planned,
        console,
        summarize,
        kind=study.name,
        data=[file_state(study.program)] if study.program else [],
        preflight=preflight,
        json_=json_,
    )


@app.command
def scaling(
    *,
    config: Annotated[ScalingConfig, OPTIONS] = ScalingConfig(),  # noqa: B008  # frozen
    program: str | None = None,
    epoch_pattern: str | None = None,
    preflight: Preflight = True,
    json_: Json = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
) -> None:
    """Is it worth spreading the training over ranks, with what, how far, at what accuracy?

    Trains every model alone, over MPI and over Gloo, each run its own job. With --program it does
    so with a program of yours. The same command given again goes on where it stopped.

    For example:

        phalanx study scaling

        phalanx study scaling --models mlp cnn --ranks 1 2 4 8 --seeds 0 1 2 --full

        phalanx study scaling --models mlp --batch-sizes 64 128 256 512

        phalanx study scaling --ranks 1 2 4 --program my_train.py --epochs 6

        phalanx study scaling --hosts n0:4,n1:4 --nodes 1 2

    Parameters
    ----------
    program
        A program that trains by phalanx.start with strategy="auto", and its arguments: all that
        follows belongs to it, so options of the study stand before.
    epoch_pattern
        Of a program that trains otherwise: a regular expression of the line that it prints after
        an epoch, e.g. "epoch.*loss (?P<loss>[0-9.]+)"; groups seconds, loss and samples are taken.
        Steps are not known then.
    """
    console = new_console(json_)
    take_hosts(hosts, hostfile, console)
    if program is not None:
        study_of_program(config, program, epoch_pattern, console, preflight=preflight, json_=json_)
        return
    if epoch_pattern is not None:
        raise UserError("--epoch-pattern is for --program: give both")
    choice = resolve(config.dataset, config.data_root)

    def print_all(folder: Path, console: Console) -> None:
        summarize(folder, console)
        console.print(scaling_study.larger_study_hint(config, usable_cores()), markup=False)

    run_study(
        study_folder(config, "scaling", choice.name),
        scaling_study.plan(config, usable_cores()),
        console,
        print_all,
        kind="scaling",
        reasons=[f"data set: {choice.reason}"],
        data=[choice.name],
        preflight=preflight,
        json_=json_,
    )


def study_of_program(
    config: ScalingConfig,
    program: str,
    epoch_pattern: str | None,
    console: Console,
    *,
    preflight: bool,
    json_: bool,
) -> None:
    """Make the scaling study of a user's program."""
    run_study(
        study_folder(config, "scaling", "program", found=[program, str(epoch_pattern)]),
        plan_program(config, program, epoch_pattern, usable_cores()),
        console,
        summarize,
        kind="scaling",
        data=[file_state(program)],
        preflight=preflight,
        json_=json_,
    )


@app.command
def compression(
    *,
    config: Annotated[CompressionConfig, OPTIONS] = CompressionConfig(),  # noqa: B008  # frozen
    preflight: Preflight = True,
    json_: Json = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
) -> None:
    """Compare gradient compressors: below which bandwidth each pays, and at what accuracy.

    Trains one wide network with each: whole trainings over several seeds in this node's memory,
    and some steps on emulated links. Bytes are counted. The same command given again goes on where
    it stopped.

    For example:

        phalanx study compression

        phalanx study compression --compressors none bf16 int8 --links 1Gbit/s --seeds 0

        phalanx study compression --links 10Gbit/s 1Gbit/s,1ms --ranks 4 --epochs 5
    """
    console = new_console(json_)
    take_hosts(hosts, hostfile, console)
    choice = resolve(config.dataset, config.data_root)
    run_study(
        study_folder(config, "compression", found=[choice.name]),
        compression_study.plan(config),
        console,
        summarize,
        kind="compression",
        reasons=[f"data set: {choice.reason}"],
        data=[choice.name],
        preflight=preflight,
        json_=json_,
    )


@app.command
def large_batch(
    *,
    config: Annotated[LargeBatchConfig, OPTIONS] = LargeBatchConfig(),  # noqa: B008  # frozen
    preflight: Preflight = True,
    json_: Json = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
) -> None:
    """Find how large a batch may be, its cost in accuracy, and the remedies that help.

    Trains with ever larger batches: the recipe of the smallest as it is, with its learning rate
    scaled, with a warm-up, with LARS and with LAMB; several seeds tell what is chance. The same
    command given again goes on where it stopped.

    For example:

        phalanx study large-batch

        phalanx study large-batch --full

        phalanx study large-batch --batch-sizes 128 4096 --remedies plain linear-warmup --seeds 0 1
    """
    console = new_console(json_)
    take_hosts(hosts, hostfile, console)
    choice = resolve(config.dataset, config.data_root)
    run_study(
        study_folder(config, "large-batch", choice.name),
        large_batch_study.plan(config, NUM_TRAIN_SAMPLES),
        console,
        summarize,
        kind="large-batch",
        reasons=[f"data set: {choice.reason}"],
        data=[choice.name],
        make_runs=partial(execute, is_there=_is_a_result),
        preflight=preflight,
        json_=json_,
    )


def _is_a_result(folder: Path, kind: type[JobRecord]) -> bool:
    """A run that has diverged would diverge again: it is a result."""
    try:
        outcome = read_record(folder, kind).outcome
    except ValueError:
        return False
    return outcome.status == "completed" or has_diverged(outcome)


@app.command
def parallelism(
    *,
    config: Annotated[ParallelismConfig, OPTIONS] = ParallelismConfig(),  # noqa: B008  # frozen
    preflight: Preflight = True,
    json_: Json = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
) -> None:
    """Compare strategies of parallel training: speed, cost, and agreement with theory.

    Trains the same model on the same data in every way: summed gradients, parameter servers, local
    SGD, sharded state, split layers, pipelines, and grids of these. Time, bytes sent, memory and
    loss are measured and set beside the formulas. Then examples/scratch on up to 128 workers,
    and the algorithms of all-reduce by size. The same command given again goes on where it stopped.

    For example:

        phalanx study parallelism

        phalanx study parallelism --models mlp --ranks 2 3 4 --full

        phalanx study parallelism --schemes sequential ring zero-3 --ranks 4 --no-scratch
    """
    console = new_console(json_)
    take_hosts(hosts, hostfile, console)
    choices = {model: resolve(_data_of(model, config), config.data_root) for model in config.models}
    planned = parallelism_study.plan(config, {model: c.shape for model, c in choices.items()})
    if config.scratch:
        planned += plan_scratch(config)
    names = [choice.name for choice in choices.values()]

    def make_runs(folder: Path, runs: Sequence[PlannedRun], console: Console) -> int:
        failed = execute(folder, runs, console)
        if config.algorithms_s and max(config.ranks) > 1:
            failed += measure_algorithms(folder, max(config.ranks), config.algorithms_s, console)
        return failed

    run_study(
        study_folder(config, "parallelism", found=names),
        planned.runs,
        console,
        summarize,
        kind="parallelism",
        reasons=[
            *dict.fromkeys(f"data set: {choice.reason}" for choice in choices.values()),
            *(f"left out: {name}: {reason}" for name, reason in planned.left_out.items()),
        ],
        data=names,
        left_out=planned.left_out,
        make_runs=make_runs,
        preflight=preflight,
        json_=json_,
    )


def _data_of(model: ModelName, config: ParallelismConfig) -> DatasetName:
    return "text" if model == "gpt" else config.dataset


@app.command
def survival(
    *,
    config: Annotated[SurvivalConfig, OPTIONS] = SurvivalConfig(),  # noqa: B008  # frozen
    preflight: Preflight = True,
    json_: Json = False,
    hosts: Hosts = None,
    hostfile: HostFile = None,
) -> None:
    """Measure what faults cost: the same training undisturbed, and with ranks that die.

    Faults are injected at times drawn from a seed. The page shows the loss against wall-clock time
    with every fault marked, the share of the time that went into steps that count, how long a fault
    goes unnoticed, and whether the bits are the same. The same command given again goes on where it
    stopped.

    For example:

        phalanx study survival --quick

        phalanx study survival --fault-s 15 --seeds 0 1 2
    """
    console = new_console(json_)
    take_hosts(hosts, hostfile, console)
    choice = resolve(config.dataset, config.data_root)
    planned = survival_study.plan(config)
    run_study(
        study_folder(config, "survival", choice.name),
        planned.runs,
        console,
        summarize,
        kind="survival",
        reasons=[
            choice.reason,
            *(f"left out: {name}: {reason}" for name, reason in planned.left_out.items()),
        ],
        data=[choice.name],
        left_out=planned.left_out,
        preflight=preflight,
        json_=json_,
    )


def measure_algorithms(study: Path, ranks: int, time_s: float, console: Console) -> int:
    """Measure the message-based all-reduce algorithms in one job, unless done with these options;
    return the number of failed jobs."""
    folder = study / ALGORITHMS / f"ranks-{ranks}"
    config = CollectivesConfig(
        ranks=ranks, paths=MESSAGE_PATHS, sizes=MESSAGE_SIZES, seconds=time_s, output=folder
    )
    command = own_command("bench collectives", config)
    with contextlib.suppress(UserError):  # none, or damaged
        found = read_bench(folder)
        if found.outcome.status == "completed" and found.config.get("seconds") == time_s:
            return 0
    try:
        set_aside(folder)
        run_bench(config, folder, command=command, console=console)
    except (RunFailedError, UserError, OSError) as error:
        console.print(f"failed: {str(error).splitlines()[0]}", markup=False)
        return 1
    return 0
