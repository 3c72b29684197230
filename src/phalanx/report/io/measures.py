"""Records of loading → rates, waits, utilisation. Pure.

An epoch ends with its slowest rank; samples and bytes are summed over the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from phalanx.records.events import Event
from phalanx.records.io import IoBench, IoCell, IoEpochEvent


@dataclass(frozen=True, kw_only=True)
class IoEpochMeasure:
    """One measured epoch over all ranks."""

    total_s: float
    samples: int
    bytes: int
    first_s: float  # until the first batch was ready, on the slowest rank
    waits_s: tuple[float, ...]  # of all ranks
    stalls: int  # of the rank that had most
    utilisation: float | None  # compute ÷ total; None flat out
    resident: float | None
    wrong: int


@dataclass(frozen=True, kw_only=True)
class IoPoint:
    """One way of loading at one pace, over its measured epochs."""

    cell: IoCell
    compute_s: float  # of a step; 0: flat out
    epochs: tuple[IoEpochMeasure, ...]

    @property
    def samples_per_s(self) -> float:
        return median(e.samples / e.total_s for e in self.epochs)

    @property
    def bytes_per_s(self) -> float:
        return median(e.bytes / e.total_s for e in self.epochs)

    @property
    def range_bytes_per_s(self) -> tuple[float, float]:
        rates = [e.bytes / e.total_s for e in self.epochs]
        return min(rates), max(rates)

    @property
    def total_s(self) -> float:
        return median(e.total_s for e in self.epochs)

    @property
    def first_s(self) -> float:
        return median(e.first_s for e in self.epochs)

    @property
    def stalls(self) -> float:
        return median(e.stalls for e in self.epochs)

    @property
    def utilisation(self) -> float | None:
        found = [e.utilisation for e in self.epochs if e.utilisation is not None]
        return median(found) if found else None

    @property
    def range_utilisation(self) -> tuple[float, float] | None:
        found = [e.utilisation for e in self.epochs if e.utilisation is not None]
        return (min(found), max(found)) if found else None

    @property
    def resident(self) -> float | None:
        found = [e.resident for e in self.epochs if e.resident is not None]
        return max(found) if found else None

    @property
    def wrong(self) -> int:
        return sum(e.wrong for e in self.epochs)


@dataclass(frozen=True, kw_only=True)
class IoMeasure:
    """One measurement, with what became of it."""

    name: str
    status: str
    error: str | None = None
    bench: IoBench | None = None
    points: tuple[IoPoint, ...] = ()

    @property
    def flat(self) -> tuple[IoPoint, ...]:
        return tuple(point for point in self.points if not point.compute_s)

    @property
    def paced(self) -> tuple[IoPoint, ...]:
        """Points with the compute time of the setting."""
        compute_s = self.bench.setting.compute_s if self.bench else None
        return tuple(point for point in self.points if point.compute_s == compute_s)

    @property
    def with_compute(self) -> tuple[IoPoint, ...]:
        """Points with any compute time: a study measures several."""
        return tuple(point for point in self.points if point.compute_s)

    def flat_of(self, cell: IoCell) -> IoPoint | None:
        return next((point for point in self.flat if point.cell == cell), None)


def measure_io(bench: IoBench, ranks: Iterable[Sequence[Event]]) -> IoMeasure:
    """ranks: the events of every rank of every job."""
    found: dict[tuple[IoCell, float], dict[int, list[IoEpochEvent]]] = {}
    for events in ranks:
        for event in events:
            if isinstance(event, IoEpochEvent) and event.round > 0:
                rounds = found.setdefault((event.cell, event.compute_s), {})
                rounds.setdefault(event.round, []).append(event)
    points = []
    for (cell, compute_s), rounds in found.items():
        # Rounds that are incomplete on any rank do not count.
        whole = [parts for _, parts in sorted(rounds.items()) if len(parts) == cell.ranks]
        epochs = tuple(_epoch(parts, bench.setting.stall_s) for parts in whole)
        if epochs:
            points.append(IoPoint(cell=cell, compute_s=compute_s, epochs=epochs))
    return IoMeasure(
        name=bench.bench,
        status=bench.outcome.status,
        error=bench.outcome.error,
        bench=bench,
        points=tuple(points),
    )


def _epoch(parts: Sequence[IoEpochEvent], stall_s: float) -> IoEpochMeasure:
    total_s = max(part.total_s for part in parts)
    steps, compute_s = len(parts[0].waits_s), parts[0].compute_s
    known = [part.resident for part in parts if part.resident is not None]
    return IoEpochMeasure(
        total_s=total_s,
        samples=sum(part.samples for part in parts),
        bytes=sum(part.bytes for part in parts),
        first_s=max(part.waits_s[0] for part in parts),
        waits_s=tuple(wait for part in parts for wait in part.waits_s),
        stalls=max(sum(wait > stall_s for wait in part.waits_s) for part in parts),
        utilisation=compute_s * steps / total_s if compute_s else None,
        resident=max(known) if known else None,
        wrong=sum(part.wrong for part in parts),
    )
