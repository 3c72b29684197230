"""The runs of a parallelism study in the groups that are drawn and told together. Pure but for
`read_study_data`, which reads the records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.report.collectives.comparison import CollectiveResults, collective_results
from phalanx.report.collectives.folder import holds_benches, read_benches
from phalanx.report.collectives.measures import BenchMeasure
from phalanx.report.comparison import TrainingCell, TrainingWorkload, workload_labels
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.format import capitals
from phalanx.report.measures import SCRATCH_MODEL, RunMeasure
from phalanx.report.parallelism.rank_details import RunDetail, pipeline_step
from phalanx.report.schemes import GROUPS, SchemeGroup, communicates_within, group_of

ALGORITHMS = "algorithms"
"""Folder within the study, of measured collectives: one for each number of ranks."""


@dataclass(frozen=True, kw_only=True)
class ParallelCell:
    """A scheme on a number of ranks: the completed runs, and what the first of them recorded."""

    cell: TrainingCell

    @property
    def detail(self) -> RunDetail:
        return RunDetail(ranks=tuple(self.cell.runs[0].ranks.values()))

    @property
    def runs(self) -> tuple[RunMeasure, ...]:
        return self.cell.runs

    @property
    def scheme(self) -> str:
        return self.cell.layout.strategy

    @property
    def ranks(self) -> int:
        return self.cell.layout.ranks

    @property
    def label(self) -> str:
        return f"{self.scheme}, {self.ranks} ranks" if self.ranks > 1 else self.scheme

    @property
    def workers(self) -> int:
        """Ranks without servers."""
        return len(self.detail.of_role("worker")) or self.ranks

    @property
    def hidden(self) -> str:
        """Widths of the hidden layers of the network from scratch."""
        run = self.cell.runs[0].run
        return str(run.setting.options.get("hidden", "")) if run else ""

    @property
    def bubble(self) -> tuple[float | None, float | None]:
        """(measured, by formula): the idle share of the drawn step of a pipeline."""
        step = pipeline_step(self.detail)
        formulas = [rank.expected.bubble for rank in self.detail.ranks]
        return step.bubble if step else None, next((f for f in formulas if f is not None), None)


@dataclass(frozen=True, kw_only=True)
class ModelData:
    """All schemes of one model."""

    label: str
    cells: tuple[ParallelCell, ...]

    @property
    def sequential(self) -> ParallelCell | None:
        return next((cell for cell in self.cells if cell.scheme == "sequential"), None)

    @property
    def num_ranks(self) -> list[int]:
        """Numbers of ranks, without 1, where there is nothing to compare."""
        return sorted({cell.ranks for cell in self.cells if cell.ranks > 1})

    def on(self, ranks: int) -> list[ParallelCell]:
        return [c for c in self.cells if c.ranks == ranks and c.scheme != "sequential"]

    def of(self, group: SchemeGroup) -> list[ParallelCell]:
        return [cell for cell in self.cells if group_of(cell.scheme) == group]

    @property
    def groups(self) -> list[SchemeGroup]:
        return [group for group in GROUPS if self.of(group)]


@dataclass(frozen=True, kw_only=True)
class ParallelismStudyData:
    """Measurements that the page of a parallelism study shows."""

    measures: StudyMeasures
    models: tuple[ModelData, ...]
    scratch: tuple[ParallelCell, ...]
    benches: tuple[BenchMeasure, ...]
    algorithms: tuple[CollectiveResults, ...]


def read_study_data(folder: Path, measures: StudyMeasures | None = None) -> ParallelismStudyData:
    """Raises: UserError when the records cannot be read."""
    place = folder / ALGORITHMS
    benches = read_benches(place) if place.is_dir() and holds_benches(place) else ()
    return make_study_data(measures or read_folder(folder), benches)


def make_study_data(
    measures: StudyMeasures, benches: Sequence[BenchMeasure]
) -> ParallelismStudyData:
    cells = [ParallelCell(cell=cell) for cell in measures.cells]
    trained = [cell for cell in cells if not is_scratch(cell.cell)]
    labels = _labels([cell.cell.workload for cell in trained])
    return ParallelismStudyData(
        measures=measures,
        models=tuple(
            ModelData(
                label=capitals(labels[workload]),
                cells=tuple(cell for cell in trained if cell.cell.workload == workload),
            )
            for workload in dict.fromkeys(cell.cell.workload for cell in trained)
        ),
        scratch=tuple(cell for cell in cells if is_scratch(cell.cell)),
        benches=tuple(benches),
        algorithms=collective_results(benches),
    )


def _labels(found: Sequence[TrainingWorkload]) -> dict[TrainingWorkload, str]:
    """The model's name, with what tells workloads of one model apart."""
    by_model: dict[str, list[TrainingWorkload]] = {}
    for workload in found:
        by_model.setdefault(workload.model, []).append(workload)
    return {s: label for group in by_model.values() for s, label in workload_labels(group).items()}


def is_scratch(cell: TrainingCell) -> bool:
    """Return whether the cell is the network from scratch, which runs without PyTorch."""
    return cell.workload.model == SCRATCH_MODEL


def scratch_schemes(cells: Iterable[ParallelCell]) -> list[str]:
    """Return the schemes with several workers; a single process is their first point."""
    return [s for s in dict.fromkeys(cell.scheme for cell in cells) if s != "alone"]


def with_alone(cells: Iterable[ParallelCell], scheme: str) -> list[ParallelCell]:
    """The scheme's runs, and the one process that they all are compared with."""
    return [cell for cell in cells if cell.scheme in (scheme, "alone")]


def fewest_workers(cells: Iterable[ParallelCell]) -> ParallelCell | None:
    """Return the baseline of more workers: one process, or the smallest number measured."""
    return min(cells, key=lambda cell: (cell.scheme != "alone", cell.ranks), default=None)


def waiting_share(cell: ParallelCell) -> float | None:
    """Communication that steps waited for \N{DIVISION SIGN} training time; None where most of it
    is not told apart from forward and backward."""
    return None if communicates_within(cell.scheme) else cell.cell.communication_share


def largest(cells: Iterable[ParallelCell]) -> list[ParallelCell]:
    """Return each scheme's cell with the most ranks."""
    best: dict[str, ParallelCell] = {}
    for cell in cells:
        if cell.scheme not in best or cell.ranks > best[cell.scheme].ranks:
            best[cell.scheme] = cell
    return list(best.values())
