"""The runs of a survival study with their timelines. Pure but for `read_study_data`, which reads
the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from phalanx.records.events import Event, FinishedEvent
from phalanx.records.files import read_events
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.measures import RunMeasure
from phalanx.report.statistics import Interval, mean_interval
from phalanx.report.survival.timeline import FaultMeasure, RankEvents, Timeline, make_timeline

KIND = "survival"
UNDISTURBED = "undisturbed"
LABELS = {
    UNDISTURBED: "undisturbed",
    "in-place": "survived in place",
    "stops": "stopped ranks",
    "restarts": "restarted",
    "preemption": "preempted",
}
"""Ways to go on, in the order of the page."""


@dataclass(frozen=True, kw_only=True)
class DisturbedRun:
    """A run of the study."""

    run: RunMeasure
    way: str
    seed: int
    timeline: Timeline
    sha256: tuple[str, ...]
    """Of the certificates of its ranks: one, if all have the same bits."""

    @property
    def is_completed(self) -> bool:
        return self.run.status == "completed"

    @property
    def label(self) -> str:
        return LABELS.get(self.way, self.way)

    @property
    def load_average(self) -> float | None:
        """Load of the machine when the run began."""
        return self.run.run.environment.load_average if self.run.run else None


@dataclass(frozen=True, kw_only=True)
class SurvivalCell:
    """The completed runs of one way."""

    way: str
    runs: tuple[DisturbedRun, ...]

    @property
    def label(self) -> str:
        return LABELS.get(self.way, self.way)

    @property
    def faults(self) -> list[FaultMeasure]:
        return [fault for run in self.runs for fault in run.timeline.faults]

    @property
    def shares(self) -> list[float]:
        """Effective share of each run's time."""
        found = [run.timeline.effective_share for run in self.runs]
        return [share for share in found if share is not None]

    @property
    def share(self) -> float | None:
        return fmean(self.shares) if self.shares else None

    @property
    def share_interval(self) -> Interval | None:
        found = mean_interval(self.shares)
        return None if found is None else replace(found, high=min(1.0, found.high))

    def times(self, name: str) -> list[float]:
        """Return a time of every fault: `notice_s`, `recovery_s`, `continue_s` or `lost_s`."""
        found = [getattr(fault, name) for fault in self.faults]
        return [value for value in found if value is not None]


@dataclass(frozen=True, kw_only=True)
class SurvivalStudyData:
    """Measurements that the page of a survival study shows."""

    measures: StudyMeasures
    runs: tuple[DisturbedRun, ...]

    @property
    def cells(self) -> tuple[SurvivalCell, ...]:
        """Cells of the ways that have a completed run."""
        made = [
            SurvivalCell(
                way=way, runs=tuple(r for r in self.runs if r.way == way and r.is_completed)
            )
            for way in dict.fromkeys(run.way for run in self.runs)
        ]
        return tuple(cell for cell in made if cell.runs)

    @property
    def disturbed_cells(self) -> tuple[SurvivalCell, ...]:
        return tuple(cell for cell in self.cells if cell.way != UNDISTURBED)

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    def of_seed(self, seed: int) -> list[DisturbedRun]:
        """Return the runs of a seed that have steps."""
        return [run for run in self.runs if run.seed == seed and run.timeline.steps]

    def reference(self, seed: int) -> DisturbedRun | None:
        """Return the undisturbed run of a seed."""
        found = [r for r in self.runs if (r.way, r.seed) == (UNDISTURBED, seed) and r.is_completed]
        return found[0] if found else None


def read_study_data(folder: Path, measures: StudyMeasures | None = None) -> SurvivalStudyData:
    """Raises: UserError when the records cannot be read."""
    measures = measures or read_folder(folder)
    runs = [_read_run(folder, run) for run in measures.runs]
    return SurvivalStudyData(measures=measures, runs=tuple(runs))


def _read_run(folder: Path, run: RunMeasure) -> DisturbedRun:
    starts = [] if run.status == "damaged" else _read_starts(folder / run.name, run)
    way, _, seed = run.name.rpartition("-s")
    return DisturbedRun(
        run=run,
        way=way,
        seed=int(seed),
        timeline=make_timeline(starts),
        sha256=_certified(starts[-1] if starts else {}),
    )


def _read_starts(folder: Path, run: RunMeasure) -> list[RankEvents]:
    """Return the events of the first start and of every restart."""
    restarts = run.run.restarts if run.run else []
    return [_read_ranks(each) for each in (folder, *(folder / r.folder for r in restarts))]


def _read_ranks(folder: Path) -> RankEvents:
    files = {int(path.stem.removeprefix("rank-")): path for path in folder.glob("rank-*.jsonl")}
    return {rank: list(read_events(files[rank])) for rank in sorted(files)}


def _certified(ranks: RankEvents) -> tuple[str, ...]:
    """Return the different SHA-256 of the ranks that came to the end."""
    everything: Sequence[Event] = [event for events in ranks.values() for event in events]
    ends = [event for event in everything if isinstance(event, FinishedEvent)]
    return tuple(sorted({end.certificate.sha256 for end in ends if end.certificate is not None}))
