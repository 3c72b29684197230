"""The runs of a compression study by compressor and place. Pure but for `read_study_data`, which
reads the records."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

from phalanx.report.comparison import SeedSpread, by_seed, final_accuracy, spread_over
from phalanx.report.compression.fit import CompressionPoint, Fit, fit_step_time
from phalanx.report.findings import AccuracyDifference, accuracy_difference
from phalanx.report.folder import StudyMeasures, read_folder
from phalanx.report.measures import RunMeasure
from phalanx.report.rank_measures import step_times
from phalanx.report.statistics import (
    Interval,
    Times,
    blocks,
    ratio_of_times,
)

KIND = "compression"
NONE = "none"
MEMORY = "shared memory"
WARM_UP_STEPS = 3
MARGIN = 0.005
"""A compressor holds the accuracy where it is seen to cost less than this, and not seen to cost
anything."""

_UNITS = {"kbit/s": 1e3 / 8, "mbit/s": 1e6 / 8, "gbit/s": 1e9 / 8}


@dataclass(frozen=True, kw_only=True)
class CompressionCell:
    """One compressor in one place, over its seeds."""

    compressor: str
    place: str  # MEMORY, or the link as it was asked for
    runs: tuple[RunMeasure, ...]
    step_s: float
    """Median over steps and seeds, of the slowest rank; the first steps left out."""
    times: Times = ()
    """For its interval: the median step of each run, or those of stretches of the only one."""
    sent_bytes: float | None
    """Counted; in a step, by the rank that sends the most."""

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        return bandwidth_of(self.place)

    @property
    def accuracy_by_seed(self) -> dict[int, float]:
        """Validation accuracy after the last epoch of full trainings."""
        return by_seed(self.runs, final_accuracy) if self.place == MEMORY else {}

    @property
    def accuracy(self) -> SeedSpread | None:
        """Accuracy after the last epoch; None on links, where only some steps were made."""
        return spread_over(self.runs, final_accuracy) if self.place == MEMORY else None


@dataclass(frozen=True, kw_only=True)
class CompressionStudyData:
    """Measurements that the page of a compression study shows."""

    measures: StudyMeasures
    cells: tuple[CompressionCell, ...]  # in the order of the plan

    @property
    def compressors(self) -> list[str]:
        return list(dict.fromkeys(cell.compressor for cell in self.cells))

    @property
    def places(self) -> list[str]:
        """Shared memory, and the links from the fastest to the slowest."""
        places = dict.fromkeys(cell.place for cell in self.cells)
        return sorted(places, key=lambda place: -(bandwidth_of(place) or float("inf")))

    @property
    def links(self) -> list[str]:
        return [place for place in self.places if bandwidth_of(place) is not None]

    def cell(self, compressor: str, place: str) -> CompressionCell | None:
        found = [c for c in self.cells if (c.compressor, c.place) == (compressor, place)]
        return found[0] if found else None

    def step_speed_up(self, compressor: str, place: str) -> float | None:
        """Return the speed-up of a step over the one without compression."""
        own, plain = self.cell(compressor, place), self.cell(NONE, place)
        return plain.step_s / own.step_s if own and plain else None

    def compression_ratio(self, compressor: str) -> float | None:
        """Return the ratio of the uncompressed to the compressed bytes sent."""
        sent, whole = self.sent_bytes(compressor), self.sent_bytes(NONE)
        return whole / sent if sent and whole else None

    def sent_bytes(self, compressor: str) -> float | None:
        counted = [c.sent_bytes for c in self.cells if c.compressor == compressor and c.sent_bytes]
        return counted[-1] if counted else None

    def accuracy(self, compressor: str) -> SeedSpread | None:
        cell = self.cell(compressor, MEMORY)
        return cell.accuracy if cell else None

    def step_speed_up_interval(self, compressor: str, place: str) -> Interval | None:
        """Return the interval of `step_speed_up`, corrected for all compressors at `place`."""
        own, plain = self.cell(compressor, place), self.cell(NONE, place)
        if own is None or plain is None:
            return None
        others = sum(cell.place == place for cell in self.cells) - 1
        return ratio_of_times(plain.times, own.times, comparisons=others)

    def accuracy_difference(self, compressor: str) -> AccuracyDifference:
        """Compare with the accuracy without compression, seed by seed, corrected for all
        compressors."""
        own, plain = (
            cell.accuracy_by_seed if (cell := self.cell(name, MEMORY)) else {}
            for name in (compressor, NONE)
        )
        return accuracy_difference(
            own,
            plain,
            subject=compressor_phrase(compressor),
            against=compressor_phrase(NONE),
            comparisons=sum(cell.place == MEMORY for cell in self.cells) - 1,
            margin=MARGIN,
        )

    def holds_accuracy(self, compressor: str) -> str:
        return "holds" if compressor == NONE else self.accuracy_difference(compressor).verdict

    @cached_property
    def fit(self) -> Fit | None:
        return fit_step_time(
            [
                CompressionPoint(
                    compressor=cell.compressor,
                    sent_bytes=cell.sent_bytes,
                    bandwidth_bytes_per_s=bandwidth,
                    step_s=cell.step_s,
                )
                for cell in self.cells
                if (bandwidth := cell.bandwidth_bytes_per_s) and cell.sent_bytes
            ]
        )

    def break_even_bandwidth(self, compressor: str) -> float | None:
        """Return the break-even bandwidth in bytes per second; see `Fit.break_even_bandwidth`."""
        fit = self.fit
        if fit is None or not {compressor, NONE} <= set(fit.bases_s):
            return None
        return fit.break_even_bandwidth(compressor, NONE)


def read_study_data(folder: Path, measures: StudyMeasures | None = None) -> CompressionStudyData:
    """Raises: UserError when the records cannot be read."""
    return make_study_data(measures or read_folder(folder))


def make_study_data(measures: StudyMeasures) -> CompressionStudyData:
    steps = {
        run.name: step_times(run.ranks.values())
        for run in measures.runs
        if run.status == "completed"
    }
    groups: dict[tuple[str, str], list[RunMeasure]] = {}
    for run in measures.runs:
        if run.run and steps.get(run.name):
            config = run.run.config
            place = str(config.get("link") or MEMORY)
            groups.setdefault((str(config.get("compress", NONE)), place), []).append(run)
    cells = [
        CompressionCell(
            compressor=compressor,
            place=place,
            runs=tuple(runs),
            step_s=median(median(without_warm_up(steps[run.name])) for run in runs),
            times=_times([without_warm_up(steps[run.name]) for run in runs]),
            sent_bytes=_sent_bytes(runs[-1]),
        )
        for (compressor, place), runs in groups.items()
    ]
    return CompressionStudyData(measures=measures, cells=tuple(cells))


def without_warm_up(steps: Sequence[float]) -> Sequence[float]:
    """Drop the warm-up steps, which make buckets and meet cold memory."""
    return steps[WARM_UP_STEPS:] or steps


def _times(runs: Sequence[Sequence[float]]) -> Times:
    """Return a median for each run; for a single run medians of blocks.

    Neighbouring steps are not independent samples.
    """
    return tuple((median(run),) for run in runs) if len(runs) > 1 else (blocks(runs[0]),)


def bandwidth_of(place: str) -> float | None:
    """Return the bytes per second of a link such as 1Gbit/s,1ms; None for memory."""
    for word in place.split(","):
        found = re.fullmatch(r"\s*([0-9.]+)\s*([kMG]bit/s)\s*", word, re.IGNORECASE)
        if found:
            return float(found[1]) * _UNITS[found[2].lower()]
    return None


def _sent_bytes(run: RunMeasure) -> float | None:
    """Return the bytes a step in the last epoch, of the rank that sends the most."""
    sent = []
    for rank in run.ranks.values():
        last = rank.epochs[max(rank.epochs)] if rank.epochs else None
        if last is None or last.event.sent_bytes is None or not last.steps:
            return None
        sent.append(last.event.sent_bytes / last.steps)
    return max(sent, default=None)


def compressor_phrase(compressor: str) -> str:
    return {NONE: "float32", "powersgd": "PowerSGD", "topk": "top-k"}.get(compressor, compressor)


def bandwidth_text(bytes_per_s: float) -> str:
    """Format a bandwidth in bits, as usual for links: 1.2 Gbit/s, 850 Mbit/s."""
    bits = 8 * bytes_per_s
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits / 1e3:.3g} kbit/s"


def break_even_text(bytes_per_s: float | None) -> str:
    """Format the result of `CompressionStudyData.break_even_bandwidth`."""
    if bytes_per_s is None:
        return "never"
    return "always" if math.isinf(bytes_per_s) else f"below {bandwidth_text(bytes_per_s)}"
