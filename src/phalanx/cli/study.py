"""`phalanx study`."""

from __future__ import annotations

import shlex
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from phalanx.data.catalog import resolve
from phalanx.errors import RunFailedError
from phalanx.launch.cores import usable_cores
from phalanx.report.page import write_report
from phalanx.report.summary import summary_table
from phalanx.study.execute import execute, open_study
from phalanx.study.scaling import ScalingConfig, default_folder, plan
from phalanx.train.run import RUNS, this_command

app = App(name="study", help="Measure on this machine what to choose, and draw it.")


@app.command
def scaling(
    *,
    config: Annotated[ScalingConfig, Parameter(name="*", consume_multiple=True)] = ScalingConfig(),  # noqa: B008  # frozen
) -> None:
    """Is it worth spreading the training over ranks, with what, how far, at what accuracy?

    Trains every model alone, over MPI and over Gloo, each run its own job. The same command given
    again goes on where it stopped.

    For example:

        phalanx study scaling

        phalanx study scaling --models mlp cnn --ranks 1 2 4 8 --seeds 0 1 2 --full

        phalanx study scaling --models mlp --batch-sizes 64 128 256 512
    """
    console = Console(highlight=False, soft_wrap=True)
    choice = resolve(config.dataset, config.data_root)
    planned = plan(config, usable_cores())
    folder = config.study_dir or default_folder(config, choice.name, RUNS)
    open_study(folder, planned, kind="scaling", command=shlex.join(this_command()))
    console.print(f"{choice.reason}\n{len(planned)} runs in {folder}", markup=False)
    try:
        failed = execute(folder, planned, console)
    except KeyboardInterrupt:
        console.print("interrupted; the same command goes on from here", markup=False)
        raise
    console.print(summary_table(folder))
    console.print(f"report: {write_report(folder)}", markup=False)
    if failed:
        raise RunFailedError(f"{failed} of {len(planned)} runs failed; the report says why")
