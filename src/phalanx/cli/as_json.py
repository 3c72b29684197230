"""Runs and measurements as JSON on standard output, for programs that start them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from phalanx.cli.console import print_json
from phalanx.errors import RunFailedError
from phalanx.records.divergence import UNBOUNDED

if TYPE_CHECKING:  # few commands print JSON
    from phalanx.report.measures import EpochMeasure, RunMeasure


@contextmanager
def printed_run(folder: Path, wanted: bool) -> Iterator[None]:
    """Print the run of the block as JSON, also when it fails; not if its options were refused."""
    try:
        yield
    except (RunFailedError, KeyboardInterrupt):
        if wanted:
            _print_run(folder)
        raise
    if wanted:
        _print_run(folder)


def _print_run(folder: Path) -> None:
    from phalanx.report.folder import read_folder

    (measure,) = read_folder(folder).runs
    print_json({"folder": str(folder), **describe_run(measure)})


def print_study(folder: Path, report: Path, wanted: bool) -> None:
    """Print all runs of a study as JSON if `wanted`, also failed and missing ones."""
    if not wanted:
        return
    from phalanx.report.folder import read_folder

    found = read_folder(folder)
    print_json(
        {
            "folder": str(folder),
            "kind": found.study.kind,
            "command": found.study.command,
            "report": str(report),
            "left_out": found.study.left_out,
            "runs": [describe_run(measure) for measure in found.runs],
        }
    )


def print_measurement(folder: Path, console: Console, wanted: bool) -> None:
    """Print what was measured, as JSON if `wanted`, and draw its page."""
    from phalanx.report.build import content_of
    from phalanx.report.page import write_page

    content = content_of(folder)
    if wanted:
        print_json(content.as_json())
    else:
        content.print_summary(console)
    console.print(f"report: {write_page(content, folder)}", markup=False)


def describe_run(measure: RunMeasure) -> dict[str, Any]:
    """Return name, outcome, options and measurements; None where there are none."""
    run = measure.run
    return {
        "name": measure.name,
        "status": measure.status,
        "error": measure.error,
        "command": run.command if run else None,
        "config": run.config if run else None,
        "epoch_s": measure.epoch_s,
        "images_per_s": measure.images_per_s,
        "communication_share": measure.communication_share,
        "epochs": [_describe_epoch(epoch) for epoch in measure.trained],
    }


def _describe_epoch(epoch: EpochMeasure) -> dict[str, Any]:
    """Return the epoch; losses that are not finite are None, since JSON has no NaN."""
    values = asdict(epoch)
    for name in ("train_loss", "validation_loss"):
        if values[name] is not None and values[name] >= UNBOUNDED:
            values[name] = None
    return values
