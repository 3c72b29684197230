"""Ranks, medians and a file of results, for the programs of this folder."""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from phalanx.errors import UserError
from phalanx.jobs.command import mpi_job
from phalanx.jobs.cores import usable_cores
from phalanx.jobs.installation import find_mpi
from phalanx.jobs.job import Job
from phalanx.jobs.record import RUNS
from phalanx.records.environment import describe_environment
from phalanx.records.files import write_atomically
from phalanx.records.plan import PlannedRange


def run_ranks(
    program: str,
    ranks: int,
    *words: str,
    timeout_s: float = 7200,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Run `program rank FOLDER words…` on new ranks, and return what they write into FOLDER.

    Returns: the content of each `NAME.json` there, by NAME; exits with the ranks' output if
    they fail.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = mpi_job(
            find_mpi(os.environ),
            ranks,
            [sys.executable, program, "rank", name, *words],
            environ={**os.environ, **environ},
        )
        with Job.start([command], folder / "log") as job:
            if job.wait(timeout_s) != 0:
                sys.exit((folder / "log").read_text())
        return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def save(program: str, *, output: Path | None = None, **found: Any) -> None:
    """Write results, with command, machine and commit, to runs/benchmarks/PROGRAM.json."""
    path = output or RUNS / "benchmarks" / f"{Path(program).stem}.json"
    try:
        mpi = str(find_mpi(os.environ))
    except UserError:
        mpi = None
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(mpi, cores=usable_cores())),
        **found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(document, indent=1).encode())
    print(f"raw values: {path}")


def quartiles(values: Sequence[float], *, digits: int = 3) -> str:
    """Return "median [lower quartile, upper quartile]"."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} [{low:.{digits}f} {high:.{digits}f}]"


def median_range(ranges: Sequence[PlannedRange]) -> PlannedRange:
    """Return the medians of predictions and of their bounds."""
    return PlannedRange(
        median=statistics.median(each.median for each in ranges),
        low=statistics.median(each.low for each in ranges),
        high=statistics.median(each.high for each in ranges),
    )
