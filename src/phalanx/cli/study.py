"""`phalanx study`."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from cyclopts import App, Parameter
from rich.console import Console

from phalanx.bench.config import CollectivesConfig, OnMessages
from phalanx.bench.job import run_bench
from phalanx.cli.as_json import print_study
from phalanx.cli.console import Json, interruption_noted, new_console
from phalanx.cli.hosts import HostFile, Hosts, take_hosts
from phalanx.cli.lazy import add_command
from phalanx.cli.preflight import Preflight, preflight_nodes
from phalanx.data.datasets.catalog import NUM_TRAIN_SAMPLES, resolve
from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.record import this_command
from phalanx.models.options import ModelName
from phalanx.records.divergence import has_diverged
from phalanx.records.files import read_bench
from phalanx.report.build import content_of
from phalanx.report.collectives import ALGORITHMS
from phalanx.report.page import write_page
from phalanx.study import compression as compression_study
from phalanx.study import large_batch as large_batch_study
from phalanx.study import parallelism as parallelism_study
from phalanx.study import scaling as scaling_study
from phalanx.study import survival as survival_study
from phalanx.study.compression import CompressionConfig
from phalanx.study.execute import PreparedStudy, execute, is_done, open_study, set_aside
from phalanx.study.large_batch import LargeBatchConfig
from phalanx.study.own import keep_file, own_folder, read_file
from phalanx.study.own import runs_of as own_runs
from phalanx.study.parallelism import ParallelismConfig, scratch_runs
from phalanx.study.programs import file_state, program_runs
from phalanx.study.run import StudyRun, StudyRuns, named_hosts, own_command, study_folder
from phalanx.study.scaling import ScalingConfig
from phalanx.study.survival import SurvivalConfig
from phalanx.train.options import DatasetName


def run_study(
    study: PreparedStudy, console: Console, *, preflight: bool = True, json_: bool = False
) -> None:
    """Open or resume a study, execute its runs, print its summary and draw its page.

    preflight: examine the nodes first, once.
    Raises: UserError as `open_study`; RunFailedError when any run failed.
    """
    folder, runs = study.folder, study.runs
    todo = [run for run in runs if not is_done(folder / run.name, run.record)]
    if preflight and todo:
        preflight_nodes(max(run.mpi_ranks for run in todo), console, folders=[folder])
    found = replace(study, data=[*study.data, *named_hosts()])
    open_study(found, shlex.join(this_command()))
    left_out = (f"left out: {name}: {why}" for name, why in study.left_out.items())
    for line in (*study.reasons, *left_out, f"{len(runs)} runs in {folder}{study.where}"):
        console.print(line, markup=False)
    with interruption_noted(console, "repeat the command to resume"):
        failed = (study.make_runs or execute)(folder, runs, console)
    content = content_of(folder)
    content.print_summary(console)
    if study.hint:
        console.print(study.hint, markup=False)
    report = write_page(content, folder)
    console.print(f"report: {report}", markup=False)
    print_study(folder, report, json_)
    if failed:
        raise RunFailedError(f"{failed} of {len(runs)} runs failed; the report gives the reasons")


MESSAGE_PATHS: tuple[str, ...] = get_args(OnMessages)
MESSAGE_SIZES = ("64", "1KB", "16KB", "64KB", "256KB", "1MB", "4MB")
OPTIONS = Parameter(name="*", consume_multiple=True, negative_iterable=())
Prepare = TypeVar("Prepare", bound=Callable[[Any], PreparedStudy])

app = App(
    name="study", help="Compare options by measuring them on this machine, and draw a report."
)
add_command(app, "io", "phalanx.cli.study_io:io")


def study_command(prepare: Prepare) -> Prepare:
    """Register a kind of study: a function of its options, whose docstring is the help."""
    options: Any = get_type_hints(prepare)["config"]

    def command(
        *,
        config: Any = options(),  # noqa: B008  # frozen
        preflight: Preflight = True,
        json_: Json = False,
        hosts: Hosts = None,
        hostfile: HostFile = None,
    ) -> None:
        console = new_console(json_)
        take_hosts(hosts, hostfile, console)
        run_study(prepare(config), console, preflight=preflight, json_=json_)

    command.__doc__ = prepare.__doc__
    command.__annotations__ |= {"config": Annotated[options, OPTIONS]}
    app.command(command, name=prepare.__name__.replace("_", "-"))
    return prepare


def on_data_set(kind: str, config: Any, runs: Sequence[StudyRun], **more: Any) -> PreparedStudy:
    """Return a study of one data set, which the folder's name and a printed line name."""
    choice = resolve(config.dataset, config.data_root)
    return PreparedStudy(
        kind=kind,
        folder=study_folder(config, kind, choice.name),
        runs=runs,
        reasons=[f"data set: {choice.reason}"],
        data=[choice.name],
        **more,
    )


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
    """Run the study that a file describes: its axes, program and page.

    Parameters
    ----------
    file
        A study in TOML; docs/first_study.md has one.
    study_dir
        Folder of the study. Default: runs/NAME-..., the same for the same file.
    """
    if file is None:
        app.help_print()
        return
    study, console = read_file(file), new_console(json_)
    take_hosts(hosts, hostfile, console)
    folder = study_dir or own_folder(study, file)
    runs = own_runs(study)
    keep_file(file, folder)
    data = [file_state(study.program)] if study.program else []
    prepared = PreparedStudy(kind=study.name, folder=folder, runs=runs, data=data)
    run_study(prepared, console, preflight=preflight, json_=json_)


@study_command
def scaling(config: ScalingConfig) -> PreparedStudy:
    """Measure whether training on more ranks pays: over which library, how far, at what accuracy.

    Trains every model in one process, over MPI and over Gloo, each run in a separate job. With
    --program it trains your program. Repeat the command to resume an interrupted study.

    For example:

        phalanx study scaling

        phalanx study scaling --models mlp cnn --ranks 1 2 4 8 --seeds 0 1 2 --full

        phalanx study scaling --models mlp --batch-sizes 64 128 256 512

        phalanx study scaling --ranks 1 2 4 --program my_train.py --epochs 6

        phalanx study scaling --hosts n0:4,n1:4 --nodes 1 2
    """
    cores = usable_cores()
    if config.program is not None:
        state = [config.program, str(config.epoch_pattern)]
        return PreparedStudy(
            kind="scaling",
            folder=study_folder(config, "scaling", "program", found=state),
            runs=program_runs(config, config.program, config.epoch_pattern, cores),
            data=[file_state(config.program)],
        )
    hint = scaling_study.larger_study_hint(config, cores)
    return on_data_set("scaling", config, scaling_study.runs_of(config, cores), hint=hint)


@study_command
def compression(config: CompressionConfig) -> PreparedStudy:
    """Compare gradient compressors: below which bandwidth each pays, and at what accuracy.

    Trains one wide network with each compressor: full trainings with several seeds in this node's
    memory, and some steps on emulated links. Bytes are counted. Repeat the command to resume an
    interrupted study.

    For example:

        phalanx study compression

        phalanx study compression --compressors none bf16 int8 --links 1Gbit/s --seeds 0

        phalanx study compression --links 10Gbit/s 1Gbit/s,1ms --ranks 4 --epochs 5
    """
    return on_data_set("compression", config, compression_study.runs_of(config))


@study_command
def large_batch(config: LargeBatchConfig) -> PreparedStudy:
    """Measure the cost of large batches in accuracy, and which remedies help.

    Trains with increasing batch sizes: the recipe of the smallest batch unchanged, with a scaled
    learning rate, with a warm-up, with LARS and with LAMB, each with several seeds. Repeat the
    command to resume an interrupted study.

    For example:

        phalanx study large-batch

        phalanx study large-batch --full

        phalanx study large-batch --batch-sizes 128 4096 --remedies plain linear-warmup --seeds 0 1
    """
    runs = large_batch_study.runs_of(config, NUM_TRAIN_SAMPLES)
    # A run that has diverged would diverge again: it is a result.
    make_runs = partial(execute, is_there=partial(is_done, also=has_diverged))
    return on_data_set("large-batch", config, runs, make_runs=make_runs)


@study_command
def parallelism(config: ParallelismConfig) -> PreparedStudy:
    """Compare strategies of parallel training: speed, cost, and agreement with theory.

    Trains the same model on the same data with every strategy: summed gradients, parameter servers,
    local SGD, sharded state, split layers, pipelines, and grids of these. Compares measured time,
    bytes, memory and loss with the formulas. Then runs examples/scratch on up to 128 workers, and
    all-reduce algorithms by size. Repeat the command to resume an interrupted study.

    For example:

        phalanx study parallelism

        phalanx study parallelism --models mlp --ranks 2 3 4 --full

        phalanx study parallelism --schemes sequential ring zero-3 --ranks 4 --no-scratch
    """
    choices = {model: resolve(_data_of(model, config), config.data_root) for model in config.models}
    grid = parallelism_study.runs_of(config, {model: c.shape for model, c in choices.items()})
    second = scratch_runs(config) if config.scratch else StudyRuns()
    names = [choice.name for choice in choices.values()]

    def make_runs(folder: Path, runs: Sequence[StudyRun], console: Console) -> int:
        failed = execute(folder, runs, console)
        if config.algorithms_s and max(config.ranks) > 1:
            failed += measure_algorithms(folder, max(config.ranks), config.algorithms_s, console)
        return failed

    return PreparedStudy(
        kind="parallelism",
        folder=study_folder(config, "parallelism", found=names),
        runs=[*grid.runs, *second.runs],
        reasons=list(dict.fromkeys(f"data set: {choice.reason}" for choice in choices.values())),
        data=names,
        left_out={**grid.left_out, **second.left_out},
        make_runs=make_runs,
    )


def _data_of(model: ModelName, config: ParallelismConfig) -> DatasetName:
    return "text" if model == "gpt" else config.dataset


@study_command
def survival(config: SurvivalConfig) -> PreparedStudy:
    """Measure the cost of faults: the same training without faults, and with ranks that die.

    Faults are injected at times drawn from a seed. The page shows the loss against wall-clock time
    with every fault marked, the share of the time spent on useful steps, the time to detect a
    fault, and whether the bits are identical. Repeat the command to resume an interrupted study.

    For example:

        phalanx study survival --quick

        phalanx study survival --fault-s 15 --seeds 0 1 2
    """
    grid = survival_study.runs_of(config)
    return on_data_set("survival", config, grid.runs, left_out=grid.left_out)


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
