"""`phalanx study io`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.generate import max_part_bytes, missing_parts, remove_parts
from phalanx.bench.io.job import run_io
from phalanx.bench.io.rank_benchmark import data_location
from phalanx.cli.study_runs import run_study
from phalanx.errors import RunFailedError, UserError
from phalanx.jobs.record import RUNS, this_command
from phalanx.records.io import IoBench
from phalanx.report.format import amount
from phalanx.report.io.summary import print_summary
from phalanx.study.execute import is_done, open_study, set_aside
from phalanx.study.io import KIND, IoStudyConfig, default_folder, plan
from phalanx.study.planned import command_words


def io(
    *,
    config: Annotated[  # frozen, so it may be a default
        IoStudyConfig, Parameter(name="*", consume_multiple=True, negative_iterable=())
    ] = IoStudyConfig(),  # noqa: B008
) -> None:
    """Find where storage limits training, and which format, readers and prefetch depth to use.

    Loads the data of a profile in every format with several numbers of readers and batches ahead,
    for accelerators from fast to slow. Throughput and utilisation are measured and drawn. The same
    command given again goes on where it stopped.

    For example:

        phalanx study io

        phalanx study io --profiles resnet50 cosmoflow --readers 1 2 4 --depth 1 2 4 8

        phalanx study io --formats tar npy --cache cold --data-dir /mnt/scratch
    """
    console = Console(highlight=False, soft_wrap=True)
    folder = config.study_dir or default_folder(config, RUNS)
    planned = [
        IoRun(name=name, config=_config(options, config.data_dir or folder / "data"))
        for name, options in plan(config).items()
    ]
    open_study(folder, planned, kind=KIND, command=shlex.join(this_command()))
    most = max(run.num_bytes for run in planned)
    console.print(
        f"{len(planned)} runs in {folder}; data in {config.data_dir or folder / 'data'}: "
        f"{amount(most)} at a time, removed at the end",
        markup=False,
    )
    run_study(folder, planned, console, lambda: _measure(folder, planned, console), print_summary)


@dataclass(frozen=True, kw_only=True)
class IoRun:
    """One `phalanx bench io` of the study."""

    name: str
    config: IoConfig

    @property
    def options(self) -> Mapping[str, object]:
        return self.config.as_record()

    @property
    def num_bytes(self) -> int:
        """Return an upper bound of the bytes of data on disk."""
        shape = data_location(self.config, Path()).shape
        return sum(max_part_bytes(format_, shape) for format_ in self.config.formats)

    def check(self) -> None:
        """Check nothing: the options were checked before."""

    def make(self, folder: Path, *, study: str, console: Console, label: str) -> None:  # noqa: ARG002
        console.print(f"{label}  {self.config.title}", markup=False)
        command = command_words("bench io", self.config.as_record(), IoConfig().as_record())
        run_io(self.config, folder, command=command, console=console)


def _config(options: dict[str, Any], data: Path) -> IoConfig:
    """Return the config of one run; runs share the data, so it is kept between them."""
    return IoConfig(**options, data_dir=data, keep=True)


def _measure(study: Path, planned: list[IoRun], console: Console) -> int:
    """Make every run that is not complete; return the number that failed.

    Data written for them is removed at the end, also after an error.
    """
    locations = {data_location(run.config, study): run.config.formats for run in planned}
    ours = {
        location: missing_parts(location, formats, 1) for location, formats in locations.items()
    }
    failed = 0
    try:
        for number, run in enumerate(planned, 1):
            folder = study / run.name
            if is_done(folder, IoBench):
                continue
            label = f"[{number}/{len(planned)}]"
            try:
                set_aside(folder)
                run.make(folder, study=study.name, console=console, label=label)
            except (RunFailedError, UserError, OSError) as error:
                failed += 1
                console.print(f"{label}  failed: {str(error).splitlines()[0]}", markup=False)
    finally:
        for location, parts in ours.items():
            remove_parts(location, parts)
    return failed
