"""`phalanx study io`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter
from rich.console import Console

from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.generate import max_part_bytes, missing_parts, remove_parts
from phalanx.bench.io.job import run_io
from phalanx.bench.io.rank_benchmark import data_location
from phalanx.cli.console import new_console
from phalanx.cli.study import run_study
from phalanx.records.io import IoBench
from phalanx.records.schema import JobRecord
from phalanx.report.format import amount
from phalanx.study.execute import PreparedStudy, execute
from phalanx.study.io import KIND, IoStudyConfig, runs_of
from phalanx.study.run import StudyRun, own_command, study_folder


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
    names = (Path(name).stem for name in config.profiles)
    folder = study_folder(config, KIND, *names)
    data = config.data_dir or folder / "data"
    runs = [
        # Runs share the data, so it is kept between them.
        IoRun(name=name, config=IoConfig(**options, data_dir=data, keep=True))
        for name, options in runs_of(config).items()
    ]
    most = max(run.num_bytes for run in runs)
    where = f"; data in {data}: {amount(most)} at a time, removed at the end"
    study = PreparedStudy(kind=KIND, folder=folder, runs=runs, where=where, make_runs=_measure)
    run_study(study, new_console())


@dataclass(frozen=True, kw_only=True)
class IoRun(StudyRun):
    """One `phalanx bench io` of the study."""

    record: ClassVar[type[JobRecord]] = IoBench
    config: IoConfig

    @property
    def num_bytes(self) -> int:
        """Return an upper bound of the bytes of data on disk."""
        shape = data_location(self.config, Path()).shape
        return sum(max_part_bytes(format_, shape) for format_ in self.config.formats)

    def check(self) -> None:
        """Check nothing: the options were checked before."""

    def make(self, folder: Path, *, study: str, console: Console, label: str) -> None:  # noqa: ARG002
        console.print(f"{label}  {self.config.title}", markup=False)
        command = own_command("bench io", self.config)
        run_io(self.config, folder, command=command, console=console)


def _measure(study: Path, runs: Sequence[IoRun], console: Console) -> int:
    """Make every run that is not complete; return the number that failed.

    Data written for them is removed at the end, also after an error.
    """
    locations = {data_location(run.config, study): run.config.formats for run in runs}
    ours = {
        location: missing_parts(location, formats, 1) for location, formats in locations.items()
    }
    try:
        return execute(study, runs, console)
    finally:
        for location, parts in ours.items():
            remove_parts(location, parts)
