"""`phalanx study large-batch`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.as_json import Json
from phalanx.cli.study_runs import run_study
from phalanx.data.datasets.catalog import NUM_TRAIN_SAMPLES, resolve
from phalanx.jobs.record import RUNS, this_command
from phalanx.records.divergence import has_diverged
from phalanx.records.files import read_run
from phalanx.report.large_batch.study_data import KIND
from phalanx.report.large_batch.summary import print_summary
from phalanx.study.execute import execute, open_study
from phalanx.study.large_batch import LargeBatchConfig, default_folder, plan


def large_batch(
    *,
    config: Annotated[
        LargeBatchConfig, Parameter(name="*", consume_multiple=True, negative_iterable=())
    ] = LargeBatchConfig(),  # noqa: B008  # frozen
    json_: Json = False,
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
    console = Console(highlight=False, soft_wrap=True, stderr=json_)
    choice = resolve(config.dataset, config.data_root)
    planned = plan(config, NUM_TRAIN_SAMPLES)
    folder = config.study_dir or default_folder(config, choice.name, RUNS)
    command = shlex.join(this_command())
    open_study(folder, planned, kind=KIND, command=command, data=[choice.name])
    console.print(f"{choice.reason}\n{len(planned)} runs in {folder}", markup=False)

    def make_runs() -> int:
        # A run that has diverged would diverge again: it is a result.
        todo = [run for run in planned if not _is_a_result(folder / run.name)]
        execute(folder, todo, console)
        return sum(not _is_a_result(folder / run.name) for run in planned)

    run_study(folder, planned, console, make_runs, print_summary, json_)


def _is_a_result(folder: Path) -> bool:
    try:
        outcome = read_run(folder).outcome
    except ValueError:
        return False
    return outcome.status == "completed" or has_diverged(outcome)
