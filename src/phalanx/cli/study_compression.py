"""`phalanx study compression`."""

from __future__ import annotations

import shlex
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from phalanx.cli.as_json import Json
from phalanx.cli.study_runs import run_study
from phalanx.data.datasets.catalog import resolve
from phalanx.jobs.record import RUNS, this_command
from phalanx.report.compression.study_data import KIND
from phalanx.report.compression.summary import print_summary
from phalanx.study.compression import CompressionConfig, default_folder, plan
from phalanx.study.execute import execute, open_study


def compression(
    *,
    config: Annotated[
        CompressionConfig, Parameter(name="*", consume_multiple=True, negative_iterable=())
    ] = CompressionConfig(),  # noqa: B008  # frozen
    json_: Json = False,
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
    console = Console(highlight=False, soft_wrap=True, stderr=json_)
    choice = resolve(config.dataset, config.data_root)
    planned = plan(config)
    folder = config.study_dir or default_folder(config, choice.name, RUNS)
    command = shlex.join(this_command())
    open_study(folder, planned, kind=KIND, command=command, data=[choice.name])
    console.print(f"{choice.reason}\n{len(planned)} runs in {folder}", markup=False)
    run_study(
        folder, planned, console, lambda: execute(folder, planned, console), print_summary, json_
    )
