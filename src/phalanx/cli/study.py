"""`phalanx study`."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Annotated, get_args

from cyclopts import App, Parameter
from rich.console import Console

from phalanx.bench.config import CollectivesConfig, OnMessages
from phalanx.bench.job import run_bench
from phalanx.cli.as_json import Json
from phalanx.cli.lazy import add_command
from phalanx.cli.study_runs import run_study
from phalanx.data.datasets.catalog import resolve
from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.record import RUNS, this_command
from phalanx.launch.cores import usable_cores
from phalanx.models.options import ModelName
from phalanx.records.files import read_bench
from phalanx.report.parallelism.study_data import ALGORITHMS
from phalanx.report.parallelism.summary import print_summary
from phalanx.report.scaling.summary import show_summary
from phalanx.study.execute import execute, open_study, set_aside
from phalanx.study.parallelism import ParallelismConfig
from phalanx.study.parallelism import default_folder as parallelism_folder
from phalanx.study.parallelism import plan as plan_parallelism
from phalanx.study.planned import command_words
from phalanx.study.scaling import (
    ScalingConfig,
    default_folder,
    larger_study_hint,
    plan,
)
from phalanx.study.scratch import plan_scratch
from phalanx.train.data_options import DatasetName

MESSAGE_PATHS: tuple[str, ...] = get_args(OnMessages)
MESSAGE_SIZES = ("64", "1KB", "16KB", "64KB", "256KB", "1MB", "4MB")

app = App(
    name="study", help="Compare options by measuring them on this machine, and draw a report."
)
add_command(app, "compression", "phalanx.cli.study_compression:compression")
add_command(app, "io", "phalanx.cli.study_io:io")
add_command(app, "large-batch", "phalanx.cli.study_large_batch:large_batch")


@app.command
def scaling(
    *,
    config: Annotated[
        ScalingConfig, Parameter(name="*", consume_multiple=True, negative_iterable=())
    ] = ScalingConfig(),  # noqa: B008  # frozen
    json_: Json = False,
) -> None:
    """Is it worth spreading the training over ranks, with what, how far, at what accuracy?

    Trains every model alone, over MPI and over Gloo, each run its own job. The same command given
    again goes on where it stopped.

    For example:

        phalanx study scaling

        phalanx study scaling --models mlp cnn --ranks 1 2 4 8 --seeds 0 1 2 --full

        phalanx study scaling --models mlp --batch-sizes 64 128 256 512
    """
    console = Console(highlight=False, soft_wrap=True, stderr=json_)
    choice = resolve(config.dataset, config.data_root)
    planned = plan(config, usable_cores())
    folder = config.study_dir or default_folder(config, choice.name, RUNS)
    command = shlex.join(this_command())
    open_study(folder, planned, kind="scaling", command=command, data=[choice.name])
    console.print(f"{choice.reason}\n{len(planned)} runs in {folder}", markup=False)

    def print_all(folder: Path, console: Console) -> None:
        show_summary(folder, console)
        console.print(larger_study_hint(config, usable_cores()), markup=False)

    run_study(folder, planned, console, lambda: execute(folder, planned, console), print_all, json_)


@app.command
def parallelism(
    *,
    config: Annotated[  # frozen, so it may be a default
        ParallelismConfig, Parameter(name="*", consume_multiple=True, negative_iterable=())
    ] = ParallelismConfig(),  # noqa: B008
    json_: Json = False,
) -> None:
    """Compare strategies of parallel training: speed, cost, and agreement with theory.

    Trains the same model on the same data in every way: summed gradients, parameter servers, local
    SGD, sharded state, split layers, pipelines, and grids of these. Time, bytes sent, memory and
    loss are measured and set beside the formulas. Then a network from scratch on up to 128 workers,
    and the algorithms of all-reduce by size. The same command given again goes on where it stopped.

    For example:

        phalanx study parallelism

        phalanx study parallelism --models mlp --ranks 2 3 4 --full

        phalanx study parallelism --schemes sequential ring zero-3 --ranks 4 --no-scratch
    """
    console = Console(highlight=False, soft_wrap=True, stderr=json_)
    choices = {model: resolve(_data_of(model, config), config.data_root) for model in config.models}
    planned = plan_parallelism(config, {model: c.shape for model, c in choices.items()})
    if config.scratch:
        planned += plan_scratch(config)
    names = [choice.name for choice in choices.values()]
    folder = config.study_dir or parallelism_folder(config, names, RUNS)
    command = shlex.join(this_command())
    open_study(
        folder,
        planned.runs,
        kind="parallelism",
        command=command,
        data=names,
        left_out=planned.left_out,
    )
    for reason in dict.fromkeys(choice.reason for choice in choices.values()):
        console.print(reason, markup=False)
    for name, reason in planned.left_out.items():
        console.print(f"left out: {name}: {reason}", markup=False)
    console.print(f"{len(planned.runs)} runs in {folder}", markup=False)

    def make_runs() -> int:
        failed = execute(folder, planned.runs, console)
        if config.algorithms_s and max(config.ranks) > 1:
            failed += measure_algorithms(folder, max(config.ranks), config.algorithms_s, console)
        return failed

    run_study(folder, planned.runs, console, make_runs, print_summary, json_)


def _data_of(model: ModelName, config: ParallelismConfig) -> DatasetName:
    return "text" if model == "gpt" else config.dataset


def measure_algorithms(study: Path, ranks: int, time_s: float, console: Console) -> int:
    """Measure the message-based all-reduce algorithms in one job, unless done with these options;
    return the number of failed jobs."""
    folder = study / ALGORITHMS / f"ranks-{ranks}"
    config = CollectivesConfig(
        ranks=ranks, paths=MESSAGE_PATHS, sizes=MESSAGE_SIZES, seconds=time_s, output=folder
    )
    command = command_words(
        "bench collectives", config.as_record(), CollectivesConfig().as_record()
    )
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
