"""A study of loading: the measurements of one profile at several compute times, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.records.io import IoCell
from phalanx.records.schema import Study
from phalanx.report.io.folder import read_io_of_study
from phalanx.report.io.measures import IoEpochMeasure, IoMeasure, IoPoint


@dataclass(frozen=True, kw_only=True)
class IoStudy:
    study: Study
    runs: tuple[IoMeasure, ...]  # in the order of the plan
    profiles: tuple[IoMeasure, ...]
    """One for each profile, with the setting of its longest compute time: the rates of all its runs
    flat out together, and its points with compute at every compute time."""


def read_io_study(study: Study, folder: Path) -> IoStudy:
    runs = tuple(read_io_of_study(folder / name) for name in study.runs)
    by_profile: dict[str, list[IoMeasure]] = {}
    for run in runs:
        if run.bench and run.points:
            by_profile.setdefault(run.bench.setting.profile.name, []).append(run)
    profiles = tuple(together(name, measures) for name, measures in by_profile.items())
    return IoStudy(study=study, runs=runs, profiles=profiles)


def together(name: str, measures: Sequence[IoMeasure]) -> IoMeasure:
    """Measurements that differ in their compute time alone."""
    flat: dict[IoCell, list[IoEpochMeasure]] = {}
    for measure in measures:
        for point in measure.flat:
            flat.setdefault(point.cell, []).extend(point.epochs)
    points = [
        IoPoint(cell=cell, compute_s=0.0, epochs=tuple(epochs)) for cell, epochs in flat.items()
    ]
    paced = [point for measure in measures for point in measure.with_compute]
    benches = [measure.bench for measure in measures if measure.bench]
    return IoMeasure(
        name=name,
        status="completed",
        bench=max(benches, key=lambda bench: bench.setting.compute_s),
        points=(*points, *paced),
    )
