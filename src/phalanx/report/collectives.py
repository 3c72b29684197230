"""Measured collectives as rows: a path at a size, of one collective and run.

A call's time is that of its slowest rank. Bandwidths and floors are of a collective over p ranks
whose larger buffer holds n bytes on each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from phalanx.report.folder import Measurement, by_round, read_measurement
from phalanx.report.format import duration, joined, sentence, size
from phalanx.report.statistics import blocks
from phalanx.report.values import StudyRows, View

OfRanks = Callable[[int], float]
_RULES: dict[Collective, tuple[OfRanks, OfRanks, OfRanks]] = {
    # every buffer is read once and written once
    "all_reduce": (lambda p: 2 * (p - 1) / p, lambda p: 2 * p, lambda _: 1),
    # all inputs are read, each rank's n/p is written
    "reduce_scatter": (lambda p: (p - 1) / p, lambda p: p + 1, lambda p: 1 + 1 / p),
    # each rank reads all shards and writes its n
    "all_gather": (lambda p: (p - 1) / p, lambda p: 2 * p, lambda p: 1 + 1 / p),
    "all_to_all": (lambda p: (p - 1) / p, lambda p: 2 * p, lambda _: 2),
    "broadcast": (lambda _: 1, lambda p: 2 * (p - 1), lambda _: 1),
    "barrier": (lambda _: 0, lambda _: 0, lambda _: 0),
}
"""Functions of the number of ranks, in units of n: the bus factor; bytes read and written by all
ranks together, each reading the others' buffers where they lie; bytes of any memory that one rank
touches."""


def bus_bandwidth(collective: Collective, ranks: int, num_bytes: int, seconds: float) -> float:
    """Return the bus bandwidth in bytes per second, as defined by nccl-tests."""
    return num_bytes / seconds * _RULES[collective][0](ranks)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Bandwidth and latency of the machine while all ranks are active."""

    copy: Mapping[int, float]  # bytes/s of all ranks, by bytes that each touches in a pass
    add: Mapping[int, float]
    round_trip_s: float | None  # latency of a flag; None when ranks share no memory


def floor_s(collective: Collective, ranks: int, num_bytes: int, machine: Machine) -> float | None:
    """Return the least time that a collective can take through shared memory: memory traffic and
    flags.

    Traffic: bytes that must move ÷ the copy bandwidth at that working set. Flags: a round trip, or
    one way for a barrier.

    None when the machine was not measured, or there is nobody to talk to.
    """
    if ranks < 2 or machine.round_trip_s is None or (num_bytes and not machine.copy):
        return None
    flags_s = machine.round_trip_s * (0.5 if collective == "barrier" else 1.0)
    if not num_bytes:
        return flags_s
    _, traffic, touched = (rule(ranks) * num_bytes for rule in _RULES[collective])
    return traffic / interpolated(machine.copy, touched) + flags_s


def interpolated(curve: Mapping[int, float], at: float) -> float:
    """The value of a curve between its points, both axes logarithmic; flat beyond its ends."""
    sizes = sorted(curve)
    rates = [curve[size] for size in sizes]
    return float(np.exp(np.interp(np.log(at), np.log(sizes), np.log(rates))))


OURS = {"window", "phalanx", "world", "torch", "ring", "tree", "halving", "naive", "direct"}
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
        raise UserError(f"{folder} holds no bench.json and no folder with one")
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
    points = [row for each in zip(runs, machines, strict=True) for row in point_rows(*each)]
    known = {row["run"]: row["_facts"] for row in points}
    points.sort(key=lambda row: list(PHRASES).index(row["collective"]))
    rows = [{**row, "panel": _label(row, known)} for row in points]
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
        notes=[*_flags(run_rows), *_missing(runs)],
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
    }


def _first(run: Run) -> Sequence[Event]:
    """Return the events of rank 0, which tells what is the same for all."""
    return run.ranks[0] if run.ranks else ()


# -- Points ----------------------------------------------------------------------------------------


def point_rows(run: Run, machine: Machine) -> list[dict[str, Any]]:
    """Return a row a collective, path and size, by size and in the order of the paths."""
    if run.bench is None:
        return []
    setting = run.bench.setting
    labels = {event.path: event.label for event in _first(run) if isinstance(event, PathStateEvent)}
    types, crowd = f"{setting.dtype} {setting.op}", beside_crowd(setting.crowd).strip()
    facts = _mpi(run), f"{setting.ranks} ranks", types, crowd
    turns = by_round(run.ranks, CallsEvent, lambda call: (call.path, call.collective, call.bytes))
    rows: list[dict[str, Any]] = []
    for (path, *_), rounds in turns.items():
        # Rounds that a rank has not finished do not count.
        whole = [calls for calls in rounds.values() if len(calls) == setting.ranks]
        times_s = [s for calls in whole for s in slowest([call.times_s for call in calls])]
        if times_s:
            head: dict[str, Any] = {
                "run": run.name,
                "path_option": path,
                "path": labels.get(path, path),
            }
            head["wrong"] = sum(call.wrong for calls in rounds.values() for call in calls)
            of_call = _point(setting, whole[0][0], times_s, machine)
            rows.append({**head, **of_call, "_facts": facts, "_times_s": times_s})
    for row in rows:
        same = [
            r for r in rows if (r["collective"], r["bytes"]) == (row["collective"], row["bytes"])
        ]
        ours_s = min((r["median_s"] for r in same if r["ours"]), default=None)
        row["slower"] = row["median_s"] / ours_s if ours_s else None
    order = list(setting.paths)
    return sorted(rows, key=lambda row: (row["bytes"], order.index(row["path_option"])))


def _point(
    setting: BenchSetting, call: CallsEvent, times_s: Sequence[float], machine: Machine
) -> dict[str, Any]:
    """Return the row of a path at a size; bandwidths in units of 10⁹ bytes, as nccl-tests has
    them."""
    collective, ranks, num_bytes, median_s = (
        call.collective,
        setting.ranks,
        call.bytes,
        median(times_s),
    )
    least_s = floor_s(collective, ranks, num_bytes, machine)

    def bus(time_s: float | None) -> float | None:
        is_known = num_bytes and time_s is not None
        return bus_bandwidth(collective, ranks, num_bytes, time_s) / 1e9 if is_known else None  # type: ignore[arg-type]

    return {
        "collective": collective,
        "group": (collective, ranks, (setting.dtype, setting.op, setting.crowd)),
        "key": "mpi library" if call.path == "mpi" else call.path,
        "ours": call.path in OURS,
        "bytes": num_bytes,
        "size": size(num_bytes),
        "count": call.count,
        "type": setting.dtype if num_bytes else None,
        "op": setting.op if collective in REDUCING else None,
        "ranks": ranks,
        "calls_a_time": call.calls_a_time,
        "calls": len(times_s),
        "blocks_s": blocks(times_s),
        "median_s": median_s,
        "median_us": median_s * 1e6,
        "median_us_low": min(times_s) * 1e6,
        "median_us_high": quantile(times_s, 0.99) * 1e6,  # the slowest of fewer than 100 calls
        "algbw": num_bytes / median_s / 1e9 if num_bytes else None,
        "busbw": bus(median_s),
        "floor_us": None if least_s is None else least_s * 1e6,
        "floor_busbw": bus(least_s),
        "times_floor": None if least_s is None else median_s / least_s,
    }


def slowest(times_s: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Call by call the time of the slowest rank; calls that a rank did not write are left out."""
    return tuple(max(call) for call in zip(*times_s, strict=False))


def _label(row: Row, known: Mapping[str, tuple[str, ...]]) -> str:
    """Return the collective, and what tells this run from the others. known: their facts."""
    *facts, crowd = row["_facts"]
    told = [
        fact
        for place, fact in enumerate(facts)
        if len({others[place] for others in known.values()}) > 1
    ]
    is_alike = len(set(known.values())) < len(known)
    told = [PHRASES[row["collective"]].capitalize(), *told, crowd, row["run"] if is_alike else ""]
    return ", ".join(filter(None, told))


# -- The machine -----------------------------------------------------------------------------------


def measure_machine(ranks: Sequence[Sequence[Event]]) -> Machine:
    """Return the bandwidth over all ranks, what they moved together ÷ the time of the slowest, and
    the latency of a flag."""
    times_s: dict[tuple[Kernel, int], list[list[float]]] = {}  # one list per rank
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


def _flags(runs: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield the latency of a flag on each run's machine."""
    for run in runs:
        if (trip_s := run["_machine"].round_trip_s) is not None:
            how = f" ({run['flags_by']})" if run["flags_by"] else ""
            yield run["mpi"], f"This machine: round trip of a flag {duration(trip_s)}{how}."


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
                f"Ranks lost their core {lost:,.0f} times per second ({_mpi(run)}): the machine "
                "was not quiet."
            )
