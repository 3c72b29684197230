"""Makes records of loading with chosen numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from phalanx.records.files import EventWriter, rank_file, write_record
from phalanx.records.io import (
    Cache,
    Format,
    Generated,
    IoBench,
    IoCell,
    IoEndEvent,
    IoEpochEvent,
    IoSetting,
    Loader,
    Profile,
    Storage,
)
from phalanx.records.schema import Outcome
from tests.report.made_events import ENVIRONMENT, write_study

PROFILE = Profile(
    name="resnet50",
    source="made up",
    num_files=10,
    samples_per_file=1000,
    sample_bytes=100_000,
    batch_size=100,
    compute_s={"a100": 0.1},
    utilisation_floor=0.9,
)
SAMPLES, BATCH, STEPS, RUNS = 1000, 100, 10, 3
COMPUTE_S = 0.05
# Seconds of a batch flat out.
BATCH_S: Mapping[tuple[Format, Loader], float] = {
    ("files", "phalanx"): 0.1,
    ("files", "read"): 0.09,
    ("tar", "phalanx"): 0.01,
    ("tar", "read"): 0.01,
    ("tar", "torch"): 0.04,
    ("npy", "phalanx"): 0.008,
    ("npy", "read"): 0.01,
    ("npy", "torch"): 0.04,
}
COLD_TIMES = 5.0  # as long


def make_io(
    folder: Path,
    *,
    compute_s: float = COMPUTE_S,
    caches: Sequence[Cache] = ("warm", "cold"),
    readers: Sequence[int] = (2,),
    depths: Sequence[int] = (4,),
    ranks: Sequence[int] = (1,),
    resident_when_cold: float | None = 0.0,
    wrong: int = 0,
    outcome: Outcome | None = None,
    left_out: Mapping[str, str] | None = None,
) -> Path:
    """Rank r is r tenths slower than rank 0; round 0 is a thousand times slower."""
    setting = IoSetting(
        profile=PROFILE,
        accelerator="a100",
        scaled=["1,000 samples per rank, not 10,000 total", "<b>bold</b>"],
        num_samples=SAMPLES,
        sample_bytes=PROFILE.sample_bytes,
        batch_size=BATCH,
        steps=STEPS,
        compute_s=compute_s,
        formats=["files", "tar", "npy", "hdf5"],
        loaders=["phalanx", "read", "torch"],
        readers=list(readers),
        kinds=["threads"],
        depths=list(depths),
        caches=list(caches),
        ranks=list(ranks),
        runs=RUNS,
        stall_s=0.001,
    )
    bench = IoBench(
        bench=folder.name,
        command="phalanx bench io",
        config={},
        setting=setting,
        storage=Storage(file_system="ext4", device="/dev/<sda>", free_bytes=2**40),
        environment=ENVIRONMENT,
        outcome=outcome or Outcome(status="completed"),
        started_at="2026-01-05T09:00:00Z",
        generated=[Generated(format="tar", num_files=4, bytes=10**8, write_s=1.5)],
        left_out=dict(left_out or {"hdf5": "h5py is not installed"}),
    )
    write_record(folder, bench)
    for number in ranks:
        for rank in range(number):
            writer = EventWriter(rank_file(folder / f"ranks-{number}", rank))
            for cache in caches:
                for cell, batch_s in _cells(cache, readers, depths, number):
                    slower = 1 + rank / 10
                    there = resident_when_cold if cache == "cold" else 1.0
                    for pace in (0.0, compute_s) if cell.loader == "phalanx" else (0.0,):
                        for round_ in range(RUNS + 1):
                            writer.add(_epoch(cell, batch_s * slower, pace, round_, there, wrong))
            writer.add(IoEndEvent(at_s=9.0, peak_memory_bytes=1))
            writer.close()
    return folder


def _cells(
    cache: Cache, readers: Sequence[int], depths: Sequence[int], ranks: int
) -> list[tuple[IoCell, float]]:
    """More readers are faster by as much, more depth by a tenth."""
    made = []
    for (format_, loader), batch_s in BATCH_S.items():
        time_s = batch_s * (COLD_TIMES if cache == "cold" else 1)
        for number in readers if loader != "read" else (0,):
            for depth in depths if number else (0,):
                cell = IoCell(
                    format=format_,
                    loader=loader,
                    kind="processes" if loader == "torch" else "threads",
                    readers=number,
                    depth=depth,
                    cache=cache,
                    ranks=ranks,
                )
                faster = max(number, 1) / max(readers) if number else 1.0
                made.append((cell, time_s / faster * (1.1 if depth == 1 else 1.0)))
    return made


def _epoch(
    cell: IoCell, batch_s: float, compute_s: float, number: int, there: float | None, wrong: int
) -> IoEpochEvent:
    """The loader works while the accelerator computes, but for the first batch."""
    batch_s *= 1000 if number == 0 else 1 + number / 100
    wait_s = max(0.0, batch_s - compute_s)
    waits_s = [batch_s, *[wait_s] * (STEPS - 1)]
    return IoEpochEvent(
        at_s=1.0,
        cell=cell,
        round=number,
        compute_s=compute_s,
        samples=SAMPLES,
        bytes=SAMPLES * PROFILE.sample_bytes,
        total_s=sum(waits_s) + STEPS * compute_s,
        waits_s=waits_s,
        resident=there,
        wrong=wrong if number == 1 and compute_s else 0,
    )


def make_io_study(folder: Path, *, missing: bool = False) -> Path:
    """One profile with three compute times, 5 ms to 0.5 s; the last is missing if so wished."""
    times = {
        "resnet50-compute-0.01": 0.005,
        "resnet50-compute-0.1": 0.05,
        "resnet50-compute-1": 0.5,
    }
    for name, compute_s in list(times.items())[: 2 if missing else 3]:
        make_io(folder / name, compute_s=compute_s, readers=(1, 2), depths=(1, 4))
    return write_study(folder, "io", list(times))
