"""Makes folders of measured collectives with chosen numbers, through phalanx.records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from phalanx.records.collectives import (
    Bench,
    BenchSetting,
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
from phalanx.records.files import rank_file, write_record
from phalanx.records.schema import Outcome
from tests.report.made_events import ENVIRONMENT, write_events

LABELS = {
    "window": "phalanx window",
    "phalanx": "phalanx",
    "torch": "torch mpi",
    "mpi": "Open MPI",
    "gloo": "Gloo",
}
SIZES = (4, 2**16, 2**20, 2**24)
# Seconds of a call at the sizes above.
MEDIANS: Mapping[str, Sequence[float]] = {
    "window": (0.5e-6, 1e-6, 12e-6, 400e-6),
    "torch": (5e-6, 6e-6, 40e-6, 900e-6),
    "mpi": (0.4e-6, 8e-6, 60e-6, 2e-3),
    "gloo": (200e-6, 300e-6, 800e-6, 8e-3),
}
EVERYTHING: tuple[Collective, ...] = ("all_reduce", "broadcast", "barrier")
COPY_BYTES_PER_S = 200e9  # of one rank
ROUND_TRIP_S = 0.4e-6


def make_bench(
    folder: Path,
    *,
    collectives: Sequence[Collective] = ("all_reduce",),
    medians: Mapping[str, Sequence[float]] = MEDIANS,
    mpi: str = "Open MPI 5.0.11",
    ranks: int = 2,
    wrong: Mapping[str, int] | None = None,
    obstacles: Mapping[str, str] | None = None,
    outcome: Outcome | None = None,
    preempted: int = 0,
    config: Mapping[str, object] | None = None,
) -> Path:
    """medians: of each path, seconds at SIZES; a barrier takes the first."""
    setting = BenchSetting(
        ranks=ranks,
        collectives=list(collectives),
        paths=[*medians, *(obstacles or {})],
        sizes_bytes=list(SIZES),
        dtype="float32",
        op="sum",
    )
    bench = Bench(
        bench=folder.name,
        command="phalanx bench collectives",
        config=dict(config or {}),
        setting=setting,
        environment=msgspec.structs.replace(ENVIRONMENT, mpi=mpi),
        outcome=outcome or Outcome(status="completed"),
        started_at="2026-01-05T09:00:00Z",
    )
    write_record(folder, bench)
    for rank in range(ranks):
        events = [
            *machine_events(rank),
            *state_events(rank, collectives, medians, obstacles or {}, mpi),
            *(e for c in collectives for e in calls_events(rank, c, medians, wrong or {})),
            MeasuredEvent(
                at_s=2.0, wrong=0, peak_memory_bytes=1, watched_s=2.0, preempted=preempted
            ),
        ]
        write_events(rank_file(folder, rank), events)
    return folder


def make_vendors(folder: Path) -> Path:
    """Two MPI libraries measured beside each other, one with a wrong result."""
    make_bench(folder / "openmpi", collectives=EVERYTHING, obstacles={"nccl": "no <b>GPU</b>"})
    make_bench(folder / "mpich", collectives=EVERYTHING, mpi="MPICH 5.0.2", wrong={"gloo": 3})
    return folder


def machine_events(rank: int) -> list[Event]:
    kernels: tuple[Kernel, ...] = ("copy", "add")
    events: list[Event] = [
        TrafficEvent(
            at_s=0.1,
            kernel=kernel,
            working_set_bytes=size,
            traffic_bytes=size,
            times_s=[size / COPY_BYTES_PER_S] * 3,
        )
        for kernel in kernels
        for size in (2**16, 2**20, 2**24)
    ]
    if rank == 0:
        events.append(RoundTripsEvent(at_s=0.1, means="flags", times_s=[ROUND_TRIP_S] * 3))
    return events


def state_events(
    rank: int,
    collectives: Sequence[Collective],
    medians: Mapping[str, Sequence[float]],
    obstacles: Mapping[str, str],
    mpi: str,
) -> list[Event]:
    labels = {**LABELS, "mpi": mpi.rpartition(" ")[0]}
    events: list[Event] = [
        JoinedEvent(at_s=0.0, rank=rank, hostname="h", process_id=1, library=mpi, startup_s=1.0)
    ]
    if rank == 0:
        events += [
            PathStateEvent(
                at_s=0.0,
                path=path,
                label=labels.get(path, path),
                collective=collective,
                obstacle=obstacles.get(path),
            )
            for collective in collectives
            for path in (*medians, *obstacles)
        ]
    return events


def calls_events(
    rank: int,
    collective: Collective,
    medians: Mapping[str, Sequence[float]],
    wrong: Mapping[str, int],
) -> list[Event]:
    """Two rounds of three calls; the higher rank is the slower one."""
    sizes = (0,) if collective == "barrier" else SIZES
    return [
        CallsEvent(
            at_s=1.0,
            collective=collective,
            path=path,
            count=size // 4,
            bytes=size,
            round=number,
            times_s=[median * spread * (1.0 if rank else 0.5) for spread in (0.9, 1.0, 1.2)],
            wrong=wrong.get(path, 0) if rank == 0 and number == 0 and size == sizes[-1] else 0,
        )
        for number in range(2)
        for path, times in medians.items()
        for size, median in zip(sizes, times, strict=False)
    ]
