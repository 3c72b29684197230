"""Measured collectives as rows: a path at a size, of one collective and run.

A call's time is that of its slowest rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from phalanx.errors import UserError
from phalanx.records.collectives import (
    Bench,
    BenchSetting,
    CallsEvent,
    Collective,
    Kernel,
    MeasuredEvent,
    PathStateEvent,
    RoundTripsEvent,
    TrafficEvent,
    beside_crowd,
)
from phalanx.records.events import Event
from phalanx.records.files import rank_file
from phalanx.records.schema import Study
from phalanx.report.cells import Row
from phalanx.report.collectives.bandwidth import Machine, bus_bandwidth, floor_s
from phalanx.report.format import duration, joined, sentence, size
from phalanx.report.measurement import Measurement, by_round, read_measurement
from phalanx.report.statistics import blocks
from phalanx.report.values import StudyRows, View

OURS = frozenset({"window", "phalanx", "torch", "ring", "tree", "halving", "naive", "direct"})
UNDISTURBED = 0.25
"""Quantile that tells what a machine can do, also where others disturb it half of the time."""
QUIET_PER_S = 300  # a quiet machine of two cores showed 210 to 240, a busy one 350 to 1,200
PHRASES: dict[Collective, str] = {
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "broadcast": "broadcast",
    "all_to_all": "all-to-all",
    "barrier": "barrier",
}
REDUCING = ("all_reduce", "reduce_scatter")
ALGORITHMS = "algorithms"
"""Folder within a study, of measured collectives: one for each number of ranks."""
Run = Measurement[Bench]


def holds_benches(folder: Path) -> bool:
    return bool(_bench_folders(folder))


def _bench_folders(folder: Path) -> list[Path]:
    if (folder / "bench.json").exists():
        return [folder]
    return sorted(path.parent for path in folder.glob("*/bench.json"))


def read_collectives(folder: Path) -> StudyRows:
    """Read every measurement in `folder`, or `folder` itself, by name.

    Of several, a damaged one is a run with its error.
    Raises: UserError when there is none, or the only one cannot be read.
    """

    def files(bench: Bench) -> list[Path]:
        return [rank_file(Path(), rank) for rank in range(bench.setting.ranks)]

    runs = [read_measurement(path, Bench, files, MeasuredEvent) for path in _bench_folders(folder)]
    if not runs:
        raise UserError(f"{folder} holds no bench.json, nor folders with one")
    if len(runs) == 1 and runs[0].bench is None:
        raise UserError(runs[0].error)
    return _rows_of(runs, folder)


def read_algorithms(folder: Path) -> StudyRows | None:
    """Read what a study has measured of algorithms; None where it has not."""
    place = folder / ALGORITHMS
    is_there = place.is_dir() and holds_benches(place)
    return read_collectives(place) if is_there else None


def _rows_of(runs: Sequence[Run], folder: Path) -> StudyRows:
    """Return the rows of measurements, collective after collective."""
    benches = [run.bench for run in runs if run.bench]
    machines = [measure_machine(run.ranks) for run in runs]
    points = [
        point_rows(run, run.bench, machine)
        for run, machine in zip(runs, machines, strict=True)
        if run.bench
    ]
    known = [(p[0]["run"], p[0]["_facts"]) for p in points if p]
    rows = [
        {**row, "panel": _label(row, known)}
        for collective in PHRASES
        for of_run in points
        for row in of_run
        if row["collective"] == collective
    ]
    run_rows = [_run_row(*each, rows) for each in zip(runs, machines, strict=True)]
    return StudyRows(
        study=Study(
            study=runs[0].name if len(runs) == 1 else folder.name,
            kind="collectives",
            command="\n".join(bench.command for bench in benches),
            started_at=min((bench.started_at for bench in benches), default=""),
            runs=[run.name for run in runs],
        ),
        folder=folder,
        runs=run_rows,
        rows=rows,
        environments=[bench.environment for bench in benches],
        notice=" ".join(_disturbed(runs)),
        notes=[*_machines(run_rows), *_missing(runs)],
    )


def _mpi(run: Run) -> str:
    """Return vendor and version."""
    return (run.bench.environment.mpi if run.bench else None) or "no MPI"


def _run_row(run: Run, machine: Machine, rows: Sequence[Row]) -> Row:
    setting = run.bench.setting if run.bench else None
    return {
        "run": run.name,
        "status": run.status,
        "error": run.error,
        "mpi": _mpi(run),
        "ranks": setting.ranks if setting else None,
        "collectives": joined([PHRASES[c] for c in setting.collectives]) if setting else None,
        "types": f"{setting.dtype} {setting.op}" if setting else None,
        "calls": sum(row["calls"] for row in rows if row["run"] == run.name),
        "flags_by": next((e.means for e in _first(run) if isinstance(e, RoundTripsEvent)), ""),
        "_machine": machine,
        "_obstacles": _obstacles(run),
    }


def _first(run: Run) -> Sequence[Event]:
    """Return the events of rank 0, which tells what is the same for all."""
    return run.ranks[0] if run.ranks else ()


# -- Points ----------------------------------------------------------------------------------------


def point_rows(run: Run, bench: Bench, machine: Machine) -> list[dict[str, Any]]:
    """Return a row a collective, path and size, by size and in the order of the paths."""
    setting, labels = bench.setting, _labels(run)
    turns = by_round(
        run.ranks, CallsEvent, lambda event: (event.path, event.collective, event.bytes)
    )
    rows: list[dict[str, Any]] = []
    for (path, *_), rounds in turns.items():
        head = {"run": run.name, "path_option": path, "path": labels.get(path, path)}
        rows += [{**head, **row} for row in _points(setting, list(rounds.values()), machine)]
    fastest: dict[tuple[str, int], float] = {}
    for row in rows:
        key = row["collective"], row["bytes"]
        if row["ours"]:
            fastest[key] = min(row["median_s"], fastest.get(key, math.inf))
    order = {path: number for number, path in enumerate(setting.paths)}
    for row in rows:
        ours = fastest.get((row["collective"], row["bytes"]))
        row |= {"slower": row["median_s"] / ours if ours else None, "_facts": _facts(run, bench)}
    return sorted(rows, key=lambda row: (row["bytes"], order.get(row["path_option"], len(order))))


def _points(
    setting: BenchSetting, rounds: Sequence[Sequence[CallsEvent]], machine: Machine
) -> Iterator[dict[str, Any]]:
    """Yield the row of a path at a size, if a round of it is whole."""
    whole = [calls for calls in rounds if len(calls) == setting.ranks]
    times_s = [s for calls in whole for s in slowest([call.times_s for call in calls])]
    if times_s:
        call, ranks, times = whole[0][0], setting.ranks, _times(times_s)
        yield {
            "collective": call.collective,
            "group": (call.collective, ranks, (setting.dtype, setting.op, setting.crowd)),
            "key": "mpi library" if call.path == "mpi" else call.path,
            "ours": call.path in OURS,
            "bytes": call.bytes,
            "size": size(call.bytes),
            "count": call.count,
            "type": setting.dtype if call.bytes else None,
            "op": setting.op if call.collective in REDUCING else None,
            "ranks": ranks,
            "calls_a_time": call.calls_a_time,
            **times,
            "wrong": sum(call.wrong for calls in rounds for call in calls),
            **_bandwidths(call.collective, ranks, call.bytes, times["median_s"], machine),
            "_times_s": times_s,
        }


def _labels(run: Run) -> dict[str, str]:
    return {event.path: event.label for event in _first(run) if isinstance(event, PathStateEvent)}


def _times(times_s: Sequence[float]) -> dict[str, Any]:
    median_s = median(times_s)
    return {
        "calls": len(times_s),
        "blocks_s": blocks(times_s),
        "median_s": median_s,
        "median_us": median_s * 1e6,
        "median_us_low": min(times_s) * 1e6,
        "median_us_high": quantile(times_s, 0.99) * 1e6,  # of fewer than 100 calls the slowest
    }


def _bandwidths(
    collective: Collective, ranks: int, num_bytes: int, median_s: float, machine: Machine
) -> dict[str, float | None]:
    """Return bandwidths in units of 10⁹ bytes, as nccl-tests has them, and the floor."""
    least_s = floor_s(collective, ranks, num_bytes, machine)

    def bus(time_s: float) -> float:
        return bus_bandwidth(collective, ranks, num_bytes, time_s) / 1e9

    return {
        "algbw": num_bytes / median_s / 1e9 if num_bytes else None,
        "busbw": bus(median_s) if num_bytes else None,
        "floor_us": None if least_s is None else least_s * 1e6,
        "floor_busbw": bus(least_s) if least_s is not None and num_bytes else None,
        "times_floor": None if least_s is None else median_s / least_s,
    }


def slowest(times_s: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Call by call the time of the slowest rank; calls that a rank did not write are left out."""
    return tuple(max(call) for call in zip(*times_s, strict=False))


def _facts(run: Run, bench: Bench) -> tuple[str, ...]:
    setting = bench.setting
    types = f"{setting.dtype} {setting.op}"
    return _mpi(run), f"{setting.ranks} ranks", types, beside_crowd(setting.crowd).strip()


def _label(row: Row, known: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """Return the collective, and what tells this run from the others. known: their facts."""
    crowd = row["_facts"][-1]
    told = [
        fact
        for place, fact in enumerate(row["_facts"][:-1])
        if len({facts[place] for _, facts in known}) > 1
    ]
    is_alike = len({facts for _, facts in known}) < len({name for name, _ in known})
    told = [PHRASES[row["collective"]].capitalize(), *told, crowd, row["run"] if is_alike else ""]
    return ", ".join(filter(None, told))


# -- The machine -----------------------------------------------------------------------------------


def measure_machine(ranks: Sequence[Sequence[Event]]) -> Machine:
    """Return the bandwidth over all ranks, what they moved together ÷ the time of the slowest, and
    the latency of a flag."""
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
    rates: dict[Kernel, dict[int, float]] = {"copy": {}, "add": {}}
    for (kernel, working_set), parts in times_s.items():
        if whole := slowest(parts):
            rates[kernel][working_set] = moved[kernel, working_set] / quantile(whole, UNDISTURBED)
    return Machine(copy=rates["copy"], add=rates["add"], round_trip_s=min(trips_s, default=None))


def quantile(times_s: Sequence[float], share: float) -> float:
    """Return the shortest of the times that this share of them does not exceed."""
    return float(np.quantile(times_s, share, method="inverted_cdf"))


def memory_rows(view: View) -> list[Row]:
    """Return the bandwidth of the machine's memory, once for each run."""
    shown: dict[str, str] = {}
    for row in view.data.rows:
        shown.setdefault(row["run"], row["panel"])
    rows: list[Row] = []
    for run in view.data.runs:
        machine = run["_machine"]
        for kernel, curve in (("copying", machine.copy), ("adding", machine.add)):
            for working_set, rate in sorted(curve.items()):
                head = {"panel": shown.get(run["run"], run["mpi"]), "run": run["run"]}
                head |= {"mpi": run["mpi"], "pass": kernel, "bytes": working_set}
                rows.append({**head, "size": size(working_set), "rate": rate / 1e9})
    return rows


def _machines(runs: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield each run's own speed of the machine."""
    for run in runs:
        machine, parts = run["_machine"], list[str]()
        if machine.round_trip_s is not None:
            how = f" ({run['flags_by']})" if run["flags_by"] else ""
            parts.append(f"flag there and back {duration(machine.round_trip_s)}{how}")
        curves: Mapping[str, Mapping[int, float]] = {"copy": machine.copy, "add": machine.add}
        for name, curve in curves.items():
            chosen = [n for n in (2**20, max(curve, default=0)) if n in curve]
            rates = [
                f"{curve[n] / 1e9:.0f} GB/s at {size(n)} a rank" for n in dict.fromkeys(chosen)
            ]
            parts += [f"{name} {', '.join(rates)}"] if rates else []
        if parts:
            yield run["mpi"], sentence(f"this machine: {'; '.join(parts)}")


def _obstacles(run: Run) -> list[PathStateEvent]:
    """Return the state of each path that was not measured, with the first collective that met a
    reason."""
    found: dict[tuple[str, str], PathStateEvent] = {}
    for event in _first(run):
        if isinstance(event, PathStateEvent) and event.obstacle:
            found.setdefault((event.path, event.obstacle), event)
    return list(found.values())


def _missing(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield what could not be measured; once where it holds for every run."""
    met: dict[tuple[str, Collective, str | None], list[str]] = {}
    for run in runs:
        for state in _obstacles(run):
            met.setdefault((state.label, state.collective, state.obstacle), []).append(_mpi(run))
    for (label, collective, reason), names in met.items():
        where = f" ({joined(names)})" if len(names) < len(runs) else ""
        text = f"not measured: {PHRASES[collective]}: {(reason or '').rstrip('.')}{where}"
        yield label, sentence(text)


def _disturbed(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the runs whose ranks lost their cores to other processes."""
    for run in runs:
        ends = [e for events in run.ranks for e in events if isinstance(e, MeasuredEvent)]
        lost = max((end.preempted / end.watched_s for end in ends if end.watched_s), default=0.0)
        bench = run.bench
        is_crowded = bench is not None and (
            bench.setting.crowd > 0 or bench.setting.ranks > bench.environment.cores
        )
        if lost > QUIET_PER_S and not is_crowded:
            yield (
                f"Ranks lost their core {lost:,.0f} times per second ({_mpi(run)}): these are "
                "not the numbers of a quiet machine."
            )
