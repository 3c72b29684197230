"""The runs of a large-batch study, those that differ only in their seed together. Pure but for
`read_study_data`, which reads the records."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from phalanx.records.divergence import has_diverged
from phalanx.records.schema import Setting
from phalanx.report.comparison import SeedSpread, by_seed, final_accuracy, spread_over
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.measures import EpochMeasure, RunMeasure

KIND = "large-batch"
TARGET_STEP = 0.005
"""Targets are multiples of half a percentage point."""


@dataclass(frozen=True, kw_only=True)
class BatchCell:
    """One remedy at one batch size."""

    remedy: str  # e.g. "linear, warm-up"
    batch_size: int
    learning_rate: float
    runs: tuple[RunMeasure, ...]  # completed runs
    diverged: tuple[RunMeasure, ...]  # stopped at non-finite gradients

    @property
    def label(self) -> str:
        return f"{self.remedy}, batch {self.batch_size:,}"

    @property
    def all_runs(self) -> tuple[RunMeasure, ...]:
        return (*self.runs, *self.diverged)

    @property
    def num_seeds(self) -> int:
        return len(self.all_runs)

    @property
    def has_warm_up(self) -> bool:
        return any(_warms_up(run.setting) for run in self.all_runs if run.setting)

    @property
    def accuracy(self) -> SeedSpread | None:
        """Validation accuracy after the last epoch, of completed runs."""
        return spread_over(self.runs, final_accuracy)

    @property
    def accuracy_by_seed(self) -> dict[int, float]:
        return by_seed(self.runs, final_accuracy)

    @property
    def optimizer(self) -> str | None:
        settings = [run.setting for run in self.all_runs]
        return next((setting.optimizer for setting in settings if setting), None)

    @property
    def gap(self) -> SeedSpread | None:
        """Accuracy of the final model on training data - that on validation data; None where
        nobody measured it. What is counted while training is of other, earlier models."""
        return spread_over(self.runs, _gap)

    @property
    def updates_per_epoch(self) -> int | None:
        for run in self.all_runs:
            for rank in run.ranks.values():
                for epoch in rank.epochs.values():
                    return epoch.steps
        return None

    @property
    def epoch_s(self) -> float | None:
        times = [run.epoch_s for run in self.runs if run.epoch_s]
        return fmean(times) if times else None


@dataclass(frozen=True, kw_only=True)
class TimeToTarget:
    """Epochs, updates and time to the target accuracy; means over the seeds that reached it."""

    cell: BatchCell
    num_reached: int
    epochs: float | None
    updates: float | None
    trained_s: float | None
    trained_s_by_seed: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class LargeBatchStudyData:
    """Measurements that the page of a large-batch study shows."""

    measures: StudyMeasures
    cells: tuple[BatchCell, ...]  # by increasing batch, then in the order of the plan

    @property
    def batch_sizes(self) -> list[int]:
        """Batch sizes of the plan, also those without a result."""
        planned = {size for run in self.measures.runs if (size := batch_size_of(run)) is not None}
        return sorted(planned.union(cell.batch_size for cell in self.cells))

    @property
    def remedies(self) -> list[str]:
        return list(dict.fromkeys(cell.remedy for cell in self.cells))

    def at(self, batch_size: int) -> list[BatchCell]:
        return [cell for cell in self.cells if cell.batch_size == batch_size]

    def cell(self, remedy: str, batch_size: int) -> BatchCell | None:
        found = [cell for cell in self.at(batch_size) if cell.remedy == remedy]
        return found[0] if found else None

    @property
    def baseline(self) -> BatchCell | None:
        """The base recipe at the smallest batch: what the others are held to."""
        if not self.cells:
            return None
        found = self.cell("plain", self.batch_sizes[0])
        return found if found and found.accuracy else None

    @property
    def target(self) -> float | None:
        """The accuracy that time is measured to: the next half percentage point below the worst
        seed of the baseline."""
        if self.baseline is None or self.baseline.accuracy is None:
            return None
        return math.floor(self.baseline.accuracy.low / TARGET_STEP - 1e-9) * TARGET_STEP

    def time_to_target(self, cell: BatchCell) -> TimeToTarget:
        by_seed = {
            run.setting.seed: hit
            for run in cell.runs
            if run.setting and (hit := self._first_hit(run))
        }
        hits, steps = list(by_seed.values()), cell.updates_per_epoch or 0
        return TimeToTarget(
            cell=cell,
            num_reached=len(hits),
            epochs=fmean(hit.epoch + 1 for hit in hits) if hits else None,
            updates=fmean((hit.epoch + 1) * steps for hit in hits) if hits else None,
            trained_s=fmean(hit.trained_s for hit in hits) if hits else None,
            trained_s_by_seed={seed: hit.trained_s for seed, hit in by_seed.items()},
        )

    def _first_hit(self, run: RunMeasure) -> EpochMeasure | None:
        target = self.target
        if target is None:
            return None
        return next((e for e in run.trained if (e.validation_accuracy or 0.0) >= target), None)


def read_study_data(folder: Path, measures: StudyMeasures | None = None) -> LargeBatchStudyData:
    """Raises: UserError when the records cannot be read."""
    return make_study_data(measures or read_folder(folder))


def make_study_data(measures: StudyMeasures) -> LargeBatchStudyData:
    groups: dict[tuple[str, int], list[RunMeasure]] = {}
    for run in measures.runs:
        if run.setting and (run.trained or diverged(run)):
            key = remedy_of(run.setting), run.setting.global_batch_size
            groups.setdefault(key, []).append(run)
    cells = [
        BatchCell(
            remedy=remedy,
            batch_size=batch_size,
            learning_rate=runs[0].setting.learning_rate if runs[0].setting else math.nan,
            runs=tuple(run for run in runs if run.status == "completed"),
            diverged=tuple(run for run in runs if diverged(run)),
        )
        for (remedy, batch_size), runs in groups.items()
    ]
    order = {remedy: number for number, (remedy, _) in enumerate(groups)}
    cells = [cell for cell in cells if cell.num_seeds]
    return LargeBatchStudyData(
        measures=measures,
        cells=tuple(sorted(cells, key=lambda cell: (cell.batch_size, order[cell.remedy]))),
    )


def empty_cell(remedy: str, batch_size: int) -> BatchCell:
    """The cell of a batch of which no run came to a result."""
    return BatchCell(
        remedy=remedy, batch_size=batch_size, learning_rate=math.nan, runs=(), diverged=()
    )


def batch_size_of(run: RunMeasure) -> int | None:
    """Return the batch size of a run; without records by its name, e.g. lamb-b1024-s0."""
    if run.setting:
        return run.setting.global_batch_size
    found = re.fullmatch(r".+-b(\d+)-s\d+", run.name)
    return int(found[1]) if found else None


def diverged(run: RunMeasure) -> bool:
    return run.run is not None and has_diverged(run.run.outcome)


def remedy_of(setting: Setting) -> str:
    """Return the remedy that a run applies to its large batch, by its setting."""
    if setting.optimizer in ("lars", "lamb"):
        return setting.optimizer.upper()
    rule = {"none": "plain", "linear": "linear", "sqrt": "square root"}[setting.learning_rate_rule]
    return f"{rule}, warm-up" if _warms_up(setting) else rule


def _warms_up(setting: Setting) -> bool:
    return float(setting.options.get("warmup_epochs", 0.0)) > 0


def names_of(cells: Iterable[BatchCell]) -> list[str]:
    return [run.name for cell in cells for run in cell.all_runs]


def _gap(run: RunMeasure) -> float | None:
    validation = final_accuracy(run)
    if run.final_train_accuracy is None or validation is None:
        return None
    return run.final_train_accuracy - validation
