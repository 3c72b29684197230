"""Reduction of ranks' events to a point for each path and size. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from phalanx.records.collectives import (
    Bench,
    CallsEvent,
    Collective,
    JoinedEvent,
    Kernel,
    MeasuredEvent,
    PathStateEvent,
    RoundTripsEvent,
    TrafficEvent,
)
from phalanx.records.events import Event
from phalanx.records.schema import Status
from phalanx.report.collectives.bandwidth import (
    Floor,
    Machine,
    algorithm_bandwidth,
    bus_bandwidth,
    floor_of,
)

OURS = frozenset({"window", "phalanx", "torch", "ring", "tree", "halving", "naive", "direct"})

UNMEASURED = Machine(copy={}, add={}, round_trip_s=None)

Key = tuple[Collective, int, str]  # collective, bytes, path


@dataclass(frozen=True, kw_only=True)
class CollectivePoint:
    """One path at one size. A call's time is that of its slowest rank."""

    collective: Collective
    path: str
    label: str
    ranks: int
    count: int
    num_bytes: int
    times_s: tuple[float, ...]  # in the order in which they were measured
    calls_a_time: int = 1  # each time is the mean of so many calls
    wrong: int
    floor: Floor | None

    @property
    def median_s(self) -> float:
        return median(self.times_s)

    @property
    def minimum_s(self) -> float:
        return min(self.times_s)

    @property
    def p99_s(self) -> float:
        """The time that 99 of 100 calls do not exceed; of fewer calls, the slowest."""
        ordered = sorted(self.times_s)
        return ordered[min(len(ordered) - 1, -(-99 * len(ordered) // 100) - 1)]

    @property
    def algorithm_bandwidth(self) -> float | None:
        return algorithm_bandwidth(self.num_bytes, self.median_s) if self.num_bytes else None

    @property
    def bus_bandwidth(self) -> float | None:
        if not self.num_bytes:
            return None
        return bus_bandwidth(self.collective, self.ranks, self.num_bytes, self.median_s)

    @property
    def times_floor(self) -> float | None:
        return None if self.floor is None else self.median_s / self.floor.seconds

    @property
    def is_ours(self) -> bool:
        return self.path in OURS


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """A path that was not measured."""

    label: str
    collective: Collective
    reason: str


@dataclass(frozen=True, kw_only=True)
class BenchMeasure:
    """One measurement: one job of ranks, on one MPI."""

    name: str
    status: Status | Literal["damaged"]
    error: str | None = None
    bench: Bench | None = None
    library: str | None = None  # the MPI library's own words
    points: tuple[CollectivePoint, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    machine: Machine = UNMEASURED
    flags_by: str = ""  # how the round trip was measured
    preempted_per_s: float | None = None  # how often a rank lost its core, the worst of them

    @property
    def mpi(self) -> str:
        """Vendor and version."""
        return (self.bench.environment.mpi if self.bench else None) or "no MPI"


def measure_bench(bench: Bench, ranks: Sequence[Sequence[Event]]) -> BenchMeasure:
    """ranks: the events of every rank, in the order of the ranks."""
    machine = measure_machine(ranks)
    first = ranks[0] if ranks else ()
    states = [event for event in first if isinstance(event, PathStateEvent)]
    labels = {state.path: state.label for state in states}
    trips = [event for event in first if isinstance(event, RoundTripsEvent)]
    joined = [event for event in first if isinstance(event, JoinedEvent)]
    ends = [event for rank in ranks for event in rank if isinstance(event, MeasuredEvent)]
    lost = [end.preempted / end.watched_s for end in ends if end.watched_s]
    return BenchMeasure(
        name=bench.bench,
        status=bench.outcome.status,
        error=bench.outcome.error,
        bench=bench,
        library=joined[0].library if joined else None,
        points=tuple(_points(bench.setting.ranks, ranks, labels, machine)),
        obstacles=tuple(_obstacles(states)),
        machine=machine,
        flags_by=trips[0].means if trips else "",
        preempted_per_s=max(lost, default=None),
    )


def measure_machine(ranks: Sequence[Iterable[Event]]) -> Machine:
    """Bandwidth over all ranks: what they moved together ÷ the time of the slowest."""
    times_s: dict[tuple[Kernel, int], list[list[float]]] = {}  # of each rank
    moved: dict[tuple[Kernel, int], int] = {}
    trips_s: list[float] = []
    for rank, events in enumerate(ranks):
        for event in events:
            if isinstance(event, RoundTripsEvent):
                trips_s += event.times_s
            elif isinstance(event, TrafficEvent):
                key = event.kernel, event.working_set_bytes
                times_s.setdefault(key, [[] for _ in ranks])[rank] += event.times_s
                moved[key] = event.traffic_bytes * len(ranks)
    rates = {
        key: moved[key] / undisturbed(whole)
        for key, parts in times_s.items()
        if (whole := slowest(parts))
    }
    return Machine(
        copy={size: rate for (kernel, size), rate in rates.items() if kernel == "copy"},
        add={size: rate for (kernel, size), rate in rates.items() if kernel == "add"},
        round_trip_s=min(trips_s, default=None),
    )


def undisturbed(times_s: Sequence[float]) -> float:
    """The first quartile: what a machine can do, also where others disturb it half of the time."""
    return sorted(times_s)[(len(times_s) - 1) // 4]


def slowest(times_s: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Call by call the time of the slowest rank; calls that a rank did not write are left out."""
    return tuple(max(call) for call in zip(*times_s, strict=False))


def _points(
    num_ranks: int,
    ranks: Sequence[Sequence[Event]],
    labels: Mapping[str, str],
    machine: Machine,
) -> Iterable[CollectivePoint]:
    turns: dict[Key, dict[int, list[CallsEvent]]] = {}
    for event in (event for rank in ranks for event in rank):
        if isinstance(event, CallsEvent):
            key = event.collective, event.bytes, event.path
            turns.setdefault(key, {}).setdefault(event.round, []).append(event)
    for (collective, num_bytes, path), rounds in turns.items():
        whole = [calls for calls in rounds.values() if len(calls) == num_ranks]
        times_s = [s for calls in whole for s in slowest([call.times_s for call in calls])]
        if not times_s:
            continue
        yield CollectivePoint(
            collective=collective,
            path=path,
            label=labels.get(path, path),
            ranks=num_ranks,
            count=whole[0][0].count,
            num_bytes=num_bytes,
            times_s=tuple(times_s),
            calls_a_time=whole[0][0].calls_a_time,
            wrong=sum(call.wrong for calls in rounds.values() for call in calls),
            floor=floor_of(collective, num_ranks, num_bytes, machine),
        )


def _obstacles(states: Iterable[PathStateEvent]) -> Iterable[Obstacle]:
    """Return one obstacle for each path and reason, with the first collective that met it."""
    seen = set()
    for state in states:
        if state.obstacle and (state.path, state.obstacle) not in seen:
            seen.add((state.path, state.obstacle))
            yield Obstacle(label=state.label, collective=state.collective, reason=state.obstacle)
