"""Measured collectives as rows: a path at a size, of one collective and run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from phalanx.records.collectives import Collective, beside_crowd
from phalanx.records.schema import Study
from phalanx.report.cells import Cell, CellPanel, Measure, Row
from phalanx.report.claims import TIMES, speed
from phalanx.report.collectives.bandwidth import bus_bandwidth
from phalanx.report.collectives.folder import holds_benches, read_benches
from phalanx.report.collectives.measures import BenchMeasure, CollectivePoint, Obstacle
from phalanx.report.content import KeyFigure
from phalanx.report.format import counted, duration, joined, sentence, size, span
from phalanx.report.statistics import Interval, blocks, not_told_apart
from phalanx.report.values import StudyRows, Told, View

FAR = 3.0
"""A path whose median is more than this many times as long is slower, without an interval."""
TOLD_SIZES = (64 * 2**10, 2**20, 16 * 2**20)
HEADLINE_BYTES = 2**20
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
CALLS = Measure(column="blocks_s")


def read_collectives(folder: Path) -> StudyRows:
    """Read measured collectives, of one run or of several beside each other.

    Raises: UserError when the records cannot be read.
    """
    return rows_of(read_benches(folder), folder)


def read_algorithms(folder: Path) -> StudyRows | None:
    """Read what a study has measured of algorithms; None where it has not."""
    place = folder / ALGORITHMS
    is_there = place.is_dir() and holds_benches(place)
    return read_collectives(place) if is_there else None


def rows_of(measures: Sequence[BenchMeasure], folder: Path) -> StudyRows:
    """Return the rows of measurements, collective after collective."""
    benches = [measure.bench for measure in measures if measure.bench]
    found = [
        (collective, measure, points)
        for collective in PHRASES
        for measure in measures
        if (points := [p for p in measure.points if p.collective == collective])
    ]
    runs = [measure for _, measure, _ in found]
    return StudyRows(
        study=Study(
            study=measures[0].name if len(measures) == 1 else folder.name,
            kind="collectives",
            command="\n".join(bench.command for bench in benches),
            started_at=min((bench.started_at for bench in benches), default=""),
            runs=[measure.name for measure in measures],
        ),
        folder=folder,
        runs=[_run_row(measure) for measure in measures],
        rows=[
            row
            for collective, measure, points in found
            for row in _point_rows(_label(collective, measure, runs), measure, points)
        ],
        environments=[bench.environment for bench in benches],
        notice=" ".join(_disturbed(measures)),
        notes=[*_machines(measures), *_missing(measures)],
    )


def _run_row(measure: BenchMeasure) -> Row:
    setting = measure.bench.setting if measure.bench else None
    return {
        "run": measure.name,
        "status": measure.status,
        "error": measure.error or "",
        "mpi": measure.mpi,
        "ranks": setting.ranks if setting else None,
        "collectives": joined([PHRASES[c] for c in setting.collectives]) if setting else None,
        "types": f"{setting.dtype} {setting.op}" if setting else None,
        "calls": sum(len(point.times_s) for point in measure.points),
        "_measure": measure,
    }


def _point_rows(
    label: str, measure: BenchMeasure, points: Sequence[CollectivePoint]
) -> Iterator[Row]:
    setting = measure.bench.setting if measure.bench else None
    asked = setting.paths if setting else []
    order = {path: number for number, path in enumerate(asked)}
    for point in sorted(points, key=lambda p: (p.num_bytes, order.get(p.path, len(asked)))):
        ours = [p.median_s for p in points if p.num_bytes == point.num_bytes and p.is_ours]
        floor_s = point.floor.seconds if point.floor else None
        floor_busbw = None
        if floor_s is not None and point.num_bytes:
            floor_busbw = bus_bandwidth(point.collective, point.ranks, point.num_bytes, floor_s)
        yield {
            "run": measure.name,
            "panel": f"{label[0].upper()}{label[1:]}",
            "collective": point.collective,
            "group": (
                point.collective,
                point.ranks,
                setting and (setting.dtype, setting.op, setting.crowd),
            ),
            "where": f"on {point.ranks} ranks{beside_crowd(setting.crowd if setting else 0)}",
            "path": point.label,
            "key": "mpi library" if point.path == "mpi" else point.path,
            "ours": point.is_ours,
            "bytes": point.num_bytes,
            "size": size(point.num_bytes),
            "count": point.count,
            "type": setting.dtype if setting and point.num_bytes else None,
            "op": setting.op if setting and point.collective in REDUCING else None,
            "ranks": point.ranks,
            "calls_a_time": point.calls_a_time,
            "calls": len(point.times_s),
            "blocks_s": blocks(point.times_s),
            "median_s": point.median_s,
            "median_us": point.median_s * 1e6,
            "median_us_low": point.minimum_s * 1e6,
            "median_us_high": point.p99_s * 1e6,
            "algbw": _gigabytes(point.algorithm_bandwidth),
            "busbw": _gigabytes(point.bus_bandwidth),
            "wrong": point.wrong,
            "slower": point.median_s / min(ours) if ours else None,
            "floor_us": None if floor_s is None else floor_s * 1e6,
            "floor_busbw": _gigabytes(floor_busbw),
            "times_floor": point.times_floor,
            "_point": point,
        }


def _gigabytes(bytes_per_s: float | None) -> float | None:
    """Return a bandwidth in units of 10⁹ bytes, as nccl-tests has them."""
    return None if bytes_per_s is None else bytes_per_s / 1e9


def _label(collective: Collective, measure: BenchMeasure, runs: Sequence[BenchMeasure]) -> str:
    """Return the collective, and what tells this run from the others."""
    parts = [PHRASES[collective]]
    if len({run.mpi for run in runs}) > 1:
        parts.append(measure.mpi)
    settings = [run.bench.setting for run in runs if run.bench]
    if measure.bench and len({setting.ranks for setting in settings}) > 1:
        parts.append(f"{measure.bench.setting.ranks} ranks")
    if measure.bench and len({(s.dtype, s.op) for s in settings}) > 1:
        parts.append(f"{measure.bench.setting.dtype} {measure.bench.setting.op}")
    if measure.bench and measure.bench.setting.crowd:
        parts.append(beside_crowd(measure.bench.setting.crowd).strip())
    label, names = ", ".join(parts), {run.name for run in runs}
    kinds = {(r.mpi, r.bench and _kind(r)) for r in runs}
    return label if len(kinds) == len(names) else f"{label}, {measure.name}"


def _kind(measure: BenchMeasure) -> str:
    setting = measure.bench.setting if measure.bench else None
    return f"{setting.ranks} {setting.dtype} {setting.op} {setting.crowd}" if setting else ""


def at_size(panel: CellPanel, num_bytes: int) -> list[Cell]:
    """Return the paths at a size, the fastest first."""
    found = [cell for cell in panel.cells if cell["bytes"] == num_bytes]
    return sorted(found, key=lambda cell: float(cell["median_s"]))


def sizes(panel: CellPanel) -> list[int]:
    return sorted({cell["bytes"] for cell in panel.cells})


Pair = tuple[Cell, Cell]
"""The fastest of our paths and the fastest of the others, at one size of one run."""


def pairs(panel: CellPanel) -> list[Pair]:
    """Return the pairs of a panel by increasing size, where both sides were measured."""
    made = []
    for num_bytes in sizes(panel):
        cells = at_size(panel, num_bytes)
        ours = next((cell for cell in cells if cell["ours"]), None)
        theirs = next((cell for cell in cells if not cell["ours"]), None)
        if ours is not None and theirs is not None:
            made.append((ours, theirs))
    return made


def gain(pair: Pair) -> float:
    ours, theirs = pair
    ratio: float = theirs["median_s"] / ours["median_s"]
    return ratio


def told_pair(pair: Pair, comparisons: int) -> Told:
    ours, theirs = pair
    at = f" at {ours['size']}" if ours["bytes"] else ""
    interval = CALLS.ratio(ours, theirs, comparisons)
    text, verdict = speed(f"{ours['path']}{at}", theirs["path"], interval, units="calls")
    return Told(text=text, verdict=verdict, interval=interval)


def against_rest(view: View) -> Iterator[Told]:
    """Yield the smallest lead of Phalanx over any library: at the smallest and the largest size,
    and at those of TOLD_SIZES."""
    groups: dict[object, list[CellPanel]] = {}
    for panel in view.panels:
        groups.setdefault(panel.cells[0]["group"], []).append(panel)
    for group in groups.values():
        found = [pair for panel in group for pair in pairs(panel)]
        known = sorted({ours["bytes"] for ours, _ in found})
        shown = [n for n in known if n in TOLD_SIZES or n in (known[0], known[-1])]
        hardest = [min((p for p in found if p[0]["bytes"] == n), key=gain) for n in shown]
        first = group[0].cells[0]
        phrase = PHRASES[first["collective"]].capitalize()
        label = f"{phrase}, {first['ranks']} ranks, {len(group)} libraries"
        for pair in hardest:
            told = told_pair(pair, len(hardest))
            yield Told(
                text=told.text,
                label=group[0].label if len(group) == 1 else label,
                verdict=told.verdict,
                interval=told.interval,
            )


def near_a_megabyte(panel: CellPanel) -> Pair | None:
    """Return the pair at 1 MB, or at the size nearest to it."""
    return min(pairs(panel), key=lambda p: abs(p[0]["bytes"] - HEADLINE_BYTES), default=None)


def headline(view: View) -> str:
    """Return ours against the best of all others, of the first collective with one: of several MPI
    libraries the hardest to beat."""
    collectives = dict.fromkeys(panel.cells[0]["collective"] for panel in view.panels)
    for collective in collectives:
        own = [p for p in view.panels if p.cells[0]["collective"] == collective]
        found = [pair for panel in own if (pair := near_a_megabyte(panel))]
        if found:
            ours, theirs = min(found, key=gain)
            interval = CALLS.ratio(ours, theirs, len(found))
            what = _what(ours)
            if interval is None or interval.verdict(1) == "unclear":
                return f"{what}: {ours['path']} and {theirs['path']} do not differ"
            shown = interval if interval.verdict(1) == "higher" else interval.inverse
            how = "faster" if interval.verdict(1) == "higher" else "slower"
            return f"{what}: {ours['path']} {shown.estimate:.2f}{TIMES} {how} than {theirs['path']}"
    if not view.panels:
        return "Nothing to compare was measured yet"
    panel = view.panels[0]
    fastest_of = at_size(panel, sizes(panel)[-1])[0]
    return f"{_what(fastest_of)}: {duration(fastest_of['median_s'])} with {fastest_of['path']}"


def _what(cell: Cell) -> str:
    """Return the collective and its size: 1 MB all-reduce."""
    phrase = PHRASES[cell["collective"]]
    return f"{cell['size']} {phrase}" if cell["bytes"] else phrase.capitalize()


def keys(view: View) -> list[KeyFigure]:
    """Return ours against the best of the others, at 1 MB or near it; the time if that is unclear.

    Intervals are corrected for all of them together.
    """
    found = [(panel, pair) for panel in view.panels if (pair := near_a_megabyte(panel))]
    figures = []
    for panel, (ours, theirs) in found:
        at = f"at {ours['size']}" if ours["bytes"] else ""
        own_s, other_s = duration(ours["median_s"]), duration(theirs["median_s"])
        interval = CALLS.ratio(ours, theirs, len(found))
        value, meaning = own_s, f"{ours['path']} {at}".rstrip()
        beside = f"{other_s} with {theirs['path']}, unclear"
        if interval is not None and interval.verdict(1) != "unclear":
            value = f"{interval.estimate:.2f}{TIMES}"
            meaning = f"as fast as {theirs['path']} {at}".rstrip()
            beside = f"{span(interval)}; {own_s} against {other_s}"
        figures.append(KeyFigure(label=panel.label, value=value, meaning=meaning, beside=beside))
    return figures


def fastest(cells: Sequence[Cell]) -> Cell | None:
    """Return the fastest path, where it is seen to be faster than every other that takes at most
    FAR times as long. cells: the paths at one size, the fastest first."""
    first, *others = cells
    near = [cell for cell in others if cell["median_s"] <= FAR * first["median_s"]]

    def lead(cell: Cell) -> Interval | None:
        return CALLS.ratio(first, cell, len(others))

    return None if not_told_apart(near, lead) else first


def crossings(view: View) -> Iterator[Told]:
    """Yield the fastest path for each range of sizes."""
    for panel in view.panels:
        if sizes(panel) == [0] or len({cell["path"] for cell in panel.cells}) < 2:
            continue
        found = [(fastest(at_size(panel, n)), n) for n in sizes(panel)]
        winners = [(cell["path"] if cell else None, n) for cell, n in found]
        ranges = [
            (path, [n for _, n in group]) for path, group in groupby(winners, key=lambda w: w[0])
        ]
        known = [f"{path} {_between(own)}" for path, own in ranges if path]
        unknown = [_between(own) for path, own in ranges if not path]
        text = f"fastest: {joined(known)}"
        if len(ranges) == 1:
            path = ranges[0][0]
            text = f"fastest at every size: {path}" if path else "no path is clearly the fastest"
        elif unknown:
            text += f"; {joined(unknown)} no path is clearly the fastest"
        yield Told(text=text, label=panel.label)


def _between(own: Sequence[int]) -> str:
    low, high = size(own[0]), size(own[-1])
    return f"at {low}" if len(own) == 1 else f"from {low} to {high}"


def private_tensors(view: View) -> Iterator[Told]:
    """Yield torch.distributed on our backend against Gloo, tensors where PyTorch put them, at the
    size where it gains least."""
    for panel in view.panels:
        ours = {c["bytes"]: c for c in panel.cells if c["key"] == "torch"}
        gloo = {c["bytes"]: c for c in panel.cells if c["key"] == "gloo"}
        both = [(ours[n], gloo[n]) for n in ours if n in gloo]
        if both:
            own, other = min(both, key=gain)
            interval = CALLS.ratio(own, other, len(both))
            at = f" at {own['size']}" if own["bytes"] else ""
            name = f"torch.distributed, backend mpi{at}"
            text, verdict = speed(name, other["path"], interval, units="calls")
            yield Told(text=text, label=panel.label, verdict=verdict, interval=interval)


def wrong_results(view: View) -> Iterator[Told]:
    for row in view.data.rows:
        if row["wrong"]:
            text = f"{row['path']} at {row['size']}: {row['wrong']:,} wrong elements"
            yield Told(text=text, label=row["panel"])


def right_results(view: View) -> Iterator[Told]:
    calls = sum(row["calls"] for row in view.data.rows)
    if calls and not any(row["wrong"] for row in view.data.rows):
        yield Told(
            text=f"All results of {calls:,} timed calls were right, every element on every rank"
        )


def facts(view: View) -> list[str]:
    """Return collectives, types, ranks, libraries and calls."""
    known = [row for row in view.data.runs if row["ranks"]]
    texts = [
        joined(list(dict.fromkeys(PHRASES[row["collective"]] for row in view.data.rows))),
        joined(list(dict.fromkeys(row["types"] for row in known))),
        joined(list(dict.fromkeys(counted(row["ranks"], "rank") for row in known))),
        joined(list(dict.fromkeys(row["mpi"] for row in known))),
    ]
    return [*texts, f"{sum(row['calls'] for row in view.data.rows):,} timed calls"]


def memory_rows(view: View) -> list[Row]:
    """Return the bandwidth of the machine's memory, once for each run."""
    shown: dict[str, str] = {}
    for row in view.data.rows:
        shown.setdefault(row["run"], row["panel"])
    rows: list[Row] = []
    for run in view.data.runs:
        machine = run["_measure"].machine
        for kernel, curve in (("copying", machine.copy), ("adding", machine.add)):
            for working_set, rate in sorted(curve.items()):
                head = {"panel": shown.get(run["run"], run["mpi"]), "run": run["run"]}
                head |= {"mpi": run["mpi"], "pass": kernel, "bytes": working_set}
                rows.append({**head, "size": size(working_set), "rate": rate / 1e9})
    return rows


def _machines(measures: Sequence[BenchMeasure]) -> Iterator[tuple[str, str]]:
    """Yield each run's own speed of the machine."""
    for measure in measures:
        machine, parts = measure.machine, list[str]()
        if machine.round_trip_s is not None:
            how = f" ({measure.flags_by})" if measure.flags_by else ""
            parts.append(f"flag there and back {duration(machine.round_trip_s)}{how}")
        for name, curve in (("copy", machine.copy), ("add", machine.add)):
            chosen = [n for n in (2**20, max(curve, default=0)) if n in curve]
            rates = [
                f"{curve[n] / 1e9:.0f} GB/s at {size(n)} a rank" for n in dict.fromkeys(chosen)
            ]
            parts += [f"{name} {', '.join(rates)}"] if rates else []
        if parts:
            yield measure.mpi, sentence(f"this machine: {'; '.join(parts)}")


def _missing(measures: Sequence[BenchMeasure]) -> Iterator[tuple[str, str]]:
    """Yield what could not be measured; once where it holds for every run."""
    met: dict[Obstacle, list[str]] = {}
    for measure in measures:
        for obstacle in measure.obstacles:
            met.setdefault(obstacle, []).append(measure.mpi)
    for obstacle, runs in met.items():
        where = f" ({joined(runs)})" if len(runs) < len(measures) else ""
        reason = obstacle.reason.rstrip(".")
        text = sentence(f"not measured: {PHRASES[obstacle.collective]}: {reason}{where}")
        yield obstacle.label, text


def _disturbed(measures: Sequence[BenchMeasure]) -> Iterator[str]:
    """Yield the runs whose ranks lost their cores to other processes."""
    for measure in measures:
        lost, bench = measure.preempted_per_s, measure.bench
        crowded = bench is not None and (
            bench.setting.crowd > 0 or bench.setting.ranks > bench.environment.cores
        )
        if lost is not None and lost > QUIET_PER_S and not crowded:
            yield (
                f"Ranks lost their core {lost:,.0f} times per second ({measure.mpi}): these are "
                "not the numbers of a quiet machine."
            )
