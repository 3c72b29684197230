"""Reads a result folder: a study, a single run, a folder of runs that belong to no study, or what
one `phalanx bench` has left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from phalanx.errors import UserError
from phalanx.records.collectives import Bench, CallsEvent
from phalanx.records.events import Event, FinishedEvent
from phalanx.records.files import (
    rank_file,
    read_events,
    read_record,
    read_run,
    read_study,
    record_file,
)
from phalanx.records.io import IoBench, IoEpochEvent
from phalanx.records.owner import has_died
from phalanx.records.schema import Run, Study
from phalanx.report.measures import RunMeasure, measure_run
from phalanx.report.rank_measures import RankMeasure, damage_of, measure_rank
from phalanx.report.trace.read import is_traced

DIED = "its process is gone and left no error"
D = TypeVar("D", Bench, IoBench)
E = TypeVar("E", CallsEvent, IoEpochEvent)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Measurement(Generic[D]):
    """The records of a measurement; without a document where they are missing or damaged."""

    name: str
    status: str
    error: str = ""
    bench: D | None = None
    ranks: Sequence[Sequence[Event]] = ()
    """Events of every rank."""


def read_measurement(
    folder: Path, kind: type[D], files_of: Callable[[D], Sequence[Path]], last: type[Event]
) -> Measurement[D]:
    """Read a folder; what is missing or damaged is told by the status.

    files_of: the files of all ranks, within the folder. last: event at the end of each.
    """
    if not record_file(folder, kind).exists():
        return Measurement(name=folder.name, status="missing")
    try:
        bench = read_record(folder, kind)
        ranks = {path: list(read_events(folder / path)) for path in files_of(bench)}
        if bench.outcome.status == "completed":
            _check_ends(folder, {path: damage_of(events, last) for path, events in ranks.items()})
    except (ValueError, OSError) as error:
        return Measurement(name=folder.name, status="damaged", error=str(error))
    is_dead = has_died(bench, folder)
    return Measurement(
        name=bench.bench,
        status="interrupted" if is_dead else bench.outcome.status,
        error=DIED if is_dead else bench.outcome.error or "",
        bench=bench,
        ranks=list(ranks.values()),
    )


def by_round(
    ranks: Sequence[Sequence[Event]], kind: type[E], key: Callable[[E], K]
) -> dict[K, dict[int, list[E]]]:
    """Return the events of a kind over all ranks, by what they measured and the round."""
    found: dict[K, dict[int, list[E]]] = {}
    for event in (event for events in ranks for event in events if isinstance(event, kind)):
        found.setdefault(key(event), {}).setdefault(event.round, []).append(event)
    return found


def _check_ends(folder: Path, damages: Mapping[Path, str | None]) -> None:
    """Raises: ValueError naming the files that are damaged, and how."""
    if texts := [f"{path} {damage}" for path, damage in damages.items() if damage]:
        raise ValueError(f"{folder} is damaged: {'; '.join(texts)}")


# -- Trainings -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StudyMeasures:
    """Measurements of a study that the page and the terminal show."""

    folder: Path
    study: Study
    runs: tuple[RunMeasure, ...]  # order of the study


def read_folder(folder: Path) -> StudyMeasures:
    """Read and measure a result folder.

    A run of a study that is missing, failed or damaged is an entry with its status and error.
    Raises UserError when `folder` holds no records, or its study.json (or the run.json of a single
    run) cannot be read.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; pass the folder of a study or of a run")
    study = study_of(folder)
    if study is not None:
        runs = tuple(_run_of_study(folder / name) for name in study.runs)
    elif (folder / "run.json").exists():
        runs = (_run_of_study(folder, is_alone=True),)
        if runs[0].run is None:
            raise UserError(runs[0].error or f"{folder} is damaged")
        command = runs[0].run.command
        study = _study_around(runs, study=runs[0].run.run, kind="train", command=command)
    else:
        paths = sorted(folder.glob("*/run.json"))
        runs = tuple(_run_of_study(path.parent, is_alone=True) for path in paths)
        if not runs:
            raise UserError(
                f"{folder} holds neither study.json nor run.json, nor folders of runs: pass the "
                "folder of a study or of a run"
            )
        study = _study_around(runs, study=folder.name, kind="runs", command="")
    return StudyMeasures(folder=folder, study=study, runs=runs)


def _study_around(runs: Sequence[RunMeasure], **told: Any) -> Study:
    """Return a study of runs that belong to none."""
    started = [measure.run.started_at for measure in runs if measure.run]
    return Study(**told, started_at=min(started, default=""), runs=[each.name for each in runs])


def newest_folder(root: Path) -> Path:
    """The study, run, bench or plan under `root` whose records were begun last.

    Raises UserError when there is none.
    """
    names = ("study.json", "run.json", "bench.json", "io.json", "plan.json")
    places = [f"{depth}/{name}" for depth in ("*", "*/*") for name in names]
    documents = [path for place in places for path in root.glob(place)]
    documents = [path for path in documents if not (path.parents[1] / "study.json").exists()]
    # Collectives measured with several MPIs, a folder each, are drawn together.
    together = list(root.glob("*/*/*/bench.json"))
    # Collectives measured by a study are drawn on its page.
    together = [path for path in together if not (path.parents[2] / "study.json").exists()]
    documents += together
    if not documents:
        raise UserError(
            f"no study or run found under {root}: pass its folder, or make one with `phalanx study "
            "scaling`"
        )
    newest = max(documents, key=lambda path: path.stat().st_mtime)
    return newest.parents[1] if newest in together else newest.parent


def study_of(folder: Path) -> Study | None:
    """Return the record of a study; None for a folder of other records.

    Raises: UserError when study.json cannot be read.
    """
    if not (folder / "study.json").exists():
        return None
    try:
        return read_study(folder)
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error


def _run_of_study(folder: Path, *, is_alone: bool = False) -> RunMeasure:
    """is_alone: it is in no study, and may have been made on nodes that share no folder."""
    if not (folder / "run.json").exists():
        return RunMeasure(name=folder.name, status="missing", folder=folder)
    try:
        run = read_run(folder)
        num_ranks, parts = _parts_of(folder, run)
        ranks = _read_ranks(parts, num_ranks)
        is_complete = run.outcome.status == "completed"
        lost = set(run.outcome.lost)
        unseen = sorted(set(range(num_ranks)) - set(ranks) - lost) if is_complete else []
        if unseen and not (is_alone and _has_summaries(ranks)):
            raise ValueError(f"{folder} completed, but has no records of ranks {unseen}")
        left = {rank: measure for rank, measure in ranks.items() if rank not in lost}
        if is_complete:
            _check_ends(
                folder, {Path(rank_file(folder, r).name): each.damage for r, each in left.items()}
            )
    except (ValueError, OSError) as error:
        return RunMeasure(name=folder.name, status="damaged", error=str(error), folder=folder)
    measure = measure_run(run, ranks, unseen=unseen)
    measure = replace(measure, is_traced=is_traced(folder), folder=folder)
    return replace(measure, status="interrupted", error=DIED) if has_died(run, folder) else measure


def _has_summaries(ranks: Mapping[int, RankMeasure]) -> bool:
    """Return whether rank 0 has written a summary of every epoch."""
    first = ranks.get(0)
    return (
        first is not None and bool(first.epochs) and first.epochs.keys() <= first.summaries.keys()
    )


def _parts_of(folder: Path, run: Run) -> tuple[int, list[Path]]:
    """Return the ranks of a run, and the folders of their records, each the earlier first. Where
    it was started again on another number of ranks, only those of the last start are comparable."""
    numbers = [run.setting.ranks, *(restart.ranks for restart in run.restarts)]
    folders = [folder, *(folder / restart.folder for restart in run.restarts)]
    num_started = numbers[-1] + run.setting.num_spares
    return num_started, folders if len(set(numbers)) == 1 else folders[-1:]


def _read_ranks(folders: Sequence[Path], ranks: int) -> dict[int, RankMeasure]:
    measures = {}
    for rank in range(ranks):
        files = [file for folder in folders if (file := rank_file(folder, rank)).exists()]
        if files:
            measures[rank] = measure_rank(_events_of(files), rank=rank)
    return measures


def _events_of(files: Sequence[Path]) -> Iterator[Event]:
    """Yield the events of a rank of several starts, the last of which says how the run ended: ranks
    that crash after the end are started again, too."""
    for file in files[:-1]:
        yield from (event for event in read_events(file) if not isinstance(event, FinishedEvent))
    yield from read_events(files[-1])
