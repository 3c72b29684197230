"""Loading as rows: a way and pace of one profile, from one state of the cache; and its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from phalanx.records.io import READS, Cache, IoCell
from phalanx.records.schema import Study
from phalanx.report.cells import Row
from phalanx.report.claims import NOTHING_COMPLETED, TIMES
from phalanx.report.content import KeyFigure
from phalanx.report.folder import study_of
from phalanx.report.format import amount, duration, joined, percent, sentence, span, three_digits
from phalanx.report.io.comparison import (
    CACHE_LABELS,
    LOADERS,
    PHRASES,
    balance_s,
    best_by,
    best_of_each_format,
    busiest,
    busy,
    caches_of,
    compare_loaders,
    fastest,
    fewest_ranks,
    floor_of,
    how,
    in_cache,
    is_cold,
    own,
    rivals,
)
from phalanx.report.io.folder import read_io_measure, read_io_of_study
from phalanx.report.io.measures import IoEpochMeasure, IoMeasure, IoPoint
from phalanx.report.statistics import Interval, not_told_apart
from phalanx.report.values import StudyRows, Told, View

MEGABYTE = 1e6
SAME_WITHIN = 0.05  # ratios of rounds closer to 1 are called none


def read_bench(folder: Path) -> StudyRows:
    """Read one measurement of loading.

    Raises: UserError when the records cannot be read.
    """
    return rows_of_bench(read_io_measure(folder), folder)


def rows_of_bench(measure: IoMeasure, folder: Path) -> StudyRows:
    """Return the rows of one measurement, a panel a state of the cache."""
    bench = measure.bench
    assert bench is not None, "checked where it was read"
    study = Study(
        study=measure.name,
        kind="io",
        command=bench.command,
        started_at=bench.started_at,
        runs=[measure.name],
    )
    return _rows(study, folder, [measure], [measure], CACHE_LABELS.__getitem__)


def read_study(folder: Path) -> StudyRows:
    """Read a study of loading, a panel a profile and state of the cache.

    Raises: UserError when study.json cannot be read.
    """
    study = study_of(folder)
    assert study is not None, "its kind was read from it"
    runs = [read_io_of_study(folder / name) for name in study.runs]
    by_profile: dict[str, list[IoMeasure]] = {}
    for run in runs:
        if run.bench and run.points:
            by_profile.setdefault(run.bench.setting.profile.name, []).append(run)
    profiles = [together(name, measures) for name, measures in by_profile.items()]
    return _rows(study, folder, runs, profiles, None)


def together(name: str, measures: Sequence[IoMeasure]) -> IoMeasure:
    """Put measurements together that differ in their compute time alone: the rates of all of them
    flat out, and their points at every compute time, with the setting of the longest."""
    flat: dict[IoCell, list[IoEpochMeasure]] = {}
    for measure in measures:
        for point in measure.flat:
            flat.setdefault(point.cell, []).extend(point.epochs)
    points = [IoPoint(cell=c, compute_s=0.0, epochs=tuple(e)) for c, e in flat.items()]
    paced = [point for measure in measures for point in measure.with_compute]
    benches = [measure.bench for measure in measures if measure.bench]
    longest = max(benches, key=lambda bench: bench.setting.compute_s)
    return IoMeasure(name=name, status="completed", bench=longest, points=(*points, *paced))


def _rows(
    study: Study,
    folder: Path,
    runs: Sequence[IoMeasure],
    profiles: Sequence[IoMeasure],
    label: Callable[[Cache], str] | None,
) -> StudyRows:
    benches = [run.bench for run in runs if run.bench]
    return StudyRows(
        study=study,
        folder=folder,
        runs=[_run_row(run) for run in runs],
        rows=[
            {
                **point_row(point),
                "run": measure.name,
                "panel": label(cache) if label else f"{measure.name}, {CACHE_LABELS[cache]}",
                "_measure": measure,
                "_point": point,
            }
            for measure in profiles
            for cache in caches_of(measure.points)
            for point in in_cache(measure.points, cache)
        ],
        environments=[bench.environment for bench in benches],
        notes=list(conditions(runs)),
    )


def _run_row(run: IoMeasure) -> Row:
    storage = run.bench.storage if run.bench else None
    return {
        "run": run.name,
        "status": run.status,
        "error": run.error or "",
        "file_system": storage.file_system or None if storage else None,
        "device": storage.device or None if storage else None,
        "free_bytes": storage.free_bytes if storage else None,
        "_measure": run,
    }


def point_row(point: IoPoint) -> dict[str, Any]:
    """Return the row of a way and pace."""
    cell = point.cell
    low, high = point.range_bytes_per_s
    shares = point.range_utilisation or (None, None)
    readers = f"{cell.readers} {cell.kind}" if cell.readers else "no readers"
    return {
        "format": PHRASES[cell.format],
        "loader": LOADERS[cell.loader],
        "kind": cell.kind,
        "cache": cell.cache,
        "readers": cell.readers,
        "depth": cell.depth,
        "ranks": cell.ranks,
        "way": readers if cell.loader not in READS else "one process",
        "compute_ms": point.compute_s * 1e3,
        "samples_per_s": point.samples_per_s,
        "mb_per_s": point.bytes_per_s / MEGABYTE,
        "mb_per_s_low": low / MEGABYTE,
        "mb_per_s_high": high / MEGABYTE,
        "first_ms": point.first_s * 1e3,
        "stalls": point.stalls,
        "utilisation": point.utilisation,
        "utilisation_low": shares[0],
        "utilisation_high": shares[1],
    }


# -- Frames ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loading:
    """A measurement from one state of the cache."""

    label: str
    measure: IoMeasure
    cache: Cache


def loadings(view: View) -> list[Loading]:
    """Return the panels of a page."""
    first = {row["panel"]: row for row in reversed(view.data.rows)}
    found = [first[panel.label] for panel in view.panels]
    return [Loading(row["panel"], row["_measure"], row["cache"]) for row in found]


Points = Callable[[Loading], Iterable[IoPoint]]


def frame(points: Points) -> Callable[[View], list[Row]]:
    """Return the rows of some points of each panel, with the floor of its profile."""

    def rows(view: View) -> list[Row]:
        return [
            {
                "panel": at.label,
                "run": at.measure.name,
                **point_row(point),
                "floor": floor_of(at.measure),
            }
            for at in loadings(view)
            for point in points(at)
        ]

    return rows


def fastest_of_loaders(at: Loading) -> Iterable[IoPoint]:
    """Return, flat out, the fastest way of each loader in every format."""
    points = in_cache(at.measure.flat, at.cache)
    return best_by(points, lambda p: (p.cell.format, p.cell.loader), _rate).values()


def busiest_of_formats(at: Loading) -> Iterable[IoPoint]:
    """Return each format's way with the best utilisation, on the fewest ranks."""
    ranks = fewest_ranks(at.measure)
    points = own(in_cache(at.measure.paced, at.cache))
    return busiest(point for point in points if point.cell.ranks == ranks).values()


def busiest_by_compute(at: Loading) -> Iterable[IoPoint]:
    """Return the best utilisation of each format at each compute time."""
    points = own(in_cache(at.measure.with_compute, at.cache))
    best = best_by(points, lambda p: (p.cell.format, p.compute_s), busy)
    return [best[key] for key in sorted(best)]


def fastest_over(value_of: Callable[[IoPoint], int | None]) -> Points:
    """Return the fastest of each format at each value; nothing where there is one value."""

    def points(at: Loading) -> Iterable[IoPoint]:
        known = [p for p in own(in_cache(at.measure.flat, at.cache)) if value_of(p) is not None]
        best = best_by(known, lambda p: (p.cell.format, value_of(p)), _rate)
        several = len({value for _, value in best}) > 1
        return [best[key] for key in sorted(best)] if several else []

    return points


def _rate(point: IoPoint) -> float:
    return point.bytes_per_s


def flat_rows(view: View) -> list[Row]:
    """Return the ways flat out, with what they are at the compute time of the profile."""
    rows: list[Row] = []
    for run in {id(at.measure): at.measure for at in loadings(view)}.values():
        paced = {point.cell: point for point in run.paced}
        for point in run.flat:
            with_compute = paced.get(point.cell)
            own_row = {**point_row(point), "panel": run.name, "run": run.name, "_point": point}
            for name in (
                "first_ms",
                "stalls",
                "utilisation",
                "utilisation_low",
                "utilisation_high",
            ):
                own_row[name] = point_row(with_compute)[name] if with_compute else None
            own_row |= {"times_read": times_read(run, point), "_measure": run}
            rows.append(own_row | {"times_torch": times_torch(run, point)})
    return rows


def times_read(measure: IoMeasure, point: IoPoint) -> float | None:
    others = rivals(measure, point, "read") if point.cell.loader not in READS else []
    return 1 / compare_loaders(point, others[0]).estimate if others else None


def times_torch(measure: IoMeasure, point: IoPoint) -> float | None:
    """Return the speed-up over PyTorch with the same number of readers and batches ahead."""
    wanted = (point.cell.readers, point.cell.depth)
    same = [
        other
        for other in rivals(measure, point, "torch")
        if (other.cell.readers, other.cell.depth) == wanted
    ]
    return compare_loaders(point, same[0]).estimate if same and point in own([point]) else None


# -- Claims ----------------------------------------------------------------------------------------


def claim(question: Callable[[IoMeasure, Cache], str | None]) -> Callable[[View], Iterator[Told]]:
    """Return a claim about each panel."""

    def tell(view: View) -> Iterator[Told]:
        for at in loadings(view):
            if text := question(at.measure, at.cache):
                yield Told(text=text, label=at.label)

    return tell


def utilisation(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the formats that keep the accelerator busy, and those that do not."""
    floor = floor_of(measure)
    points = [p for p in own(in_cache(measure.paced, cache)) if p.utilisation is not None]
    best = list(busiest(points).values())
    if not best:
        return None
    shares = {p: f"{PHRASES[p.cell.format]} ({percent(busy(p), 1)})" for p in best}
    reach = [words for point, words in shares.items() if busy(point) >= floor]
    below = [words for point, words in shares.items() if busy(point) < floor]
    text = f"{len(reach)} of {len(best)} formats reach the floor of {percent(floor, 0)}"
    text += f": {joined(reach)}" if reach else ""
    return f"{text}; not {joined(below)}" if below else text


def bound(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the compute time from which the fastest way keeps up, relative to the profile's."""
    best = fastest(best_of_each_format(measure.flat, cache, fewest_ranks(measure)))
    if best is None or measure.bench is None:
        return None
    setting, least_s = measure.bench.setting, balance_s(measure, best)
    margin = setting.compute_s / least_s
    which = "compute-bound" if margin >= 1 else "I/O-bound"
    far = f"{margin:.1f} times what it takes" if margin >= 1 else f"{percent(margin, 0)} of that"
    return (
        f"a batch of {amount(setting.batch_size * setting.sample_bytes)} takes "
        f"{duration(least_s)} from {PHRASES[best.cell.format]}; a step computes "
        f"{duration(setting.compute_s)}, {far}: {which}"
    )


def fastest_format(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the fastest format, or that it cannot be told from others."""
    points = best_of_each_format(measure.flat, cache, fewest_ranks(measure))
    best = fastest(points)
    if best is None or len(points) < 2:
        return None
    others = [point for point in points if point is not best]
    least = min(others, key=lambda point: point.samples_per_s)
    near = not_told_apart(
        others, lambda other: compare_loaders(best, other), neutral=1 + SAME_WITHIN
    )
    name, rate = PHRASES[best.cell.format], f"{three_digits(best.samples_per_s)} samples/s"
    facts = f"{rate} with {how(best.cell)}, {rounds(compare_loaders(best, least))} those of "
    facts += PHRASES[least.cell.format]
    if near:
        names = joined([PHRASES[point.cell.format] for point in near])
        return f"No clear winner among {len(points)} formats: {name} ({facts}) and {names}"
    return f"{name} is the fastest of {len(points)} formats: {facts}"


def rounds(interval: Interval) -> str:
    """Return a ratio with its range over the rounds."""
    return f"{interval.estimate:.2f}{TIMES} (rounds {span(interval)})"


def against_torch(measure: IoMeasure, cache: Cache) -> str | None:
    """Compare with PyTorch's DataLoader, in the fastest format that both read."""
    points = best_of_each_format(measure.flat, cache, fewest_ranks(measure))
    for point in sorted(points, key=lambda p: -p.samples_per_s):
        theirs = [r for name in ("torch", "torch-batched") for r in rivals(measure, point, name)]
        if best := fastest(theirs):
            where = f"from {PHRASES[point.cell.format]}"
            return compare_rounds(
                f"Phalanx {where}", LOADERS[best.cell.loader], compare_loaders(point, best)
            )
    return None


def compare_rounds(subject: str, against: str, interval: Interval) -> str:
    """Return a comparison by rounds in a sentence; what is within SAME_WITHIN of 1 is none."""
    if interval.verdict(1 + SAME_WITHIN) == "higher":
        return f"{subject}: {rounds(interval)} as fast as {against}"
    if interval.verdict(1 / (1 + SAME_WITHIN)) == "lower":
        return f"{subject}: {rounds(interval.inverse)} slower than {against}"
    return f"No difference between {subject} and {against}: {rounds(interval)}"


def choice(measure: IoMeasure, cache: Cache) -> str | None:
    """Return the cheapest way that reaches the floor at the profile's own compute time."""
    chosen = chosen_way(measure, cache)
    if chosen is None or measure.bench is None:
        return None
    floor, step = percent(floor_of(measure), 0), duration(measure.bench.setting.compute_s)
    reached, name = percent(busy(chosen), 1), PHRASES[chosen.cell.format]
    if busy(chosen) >= floor_of(measure):
        text = f"at {step} per step {name} with {how(chosen.cell)} suffice: busy {reached}"
        return f"{text}, floor {floor}"
    text = f"at {step} per step nothing reaches {floor}; the most is {reached}, with {name}"
    return f"{text}, {how(chosen.cell)}"


def chosen_way(measure: IoMeasure, cache: Cache) -> IoPoint | None:
    """Return the least that reaches the floor, or what comes nearest to it."""
    points = own(in_cache(measure.paced, cache))
    reach = [point for point in points if busy(point) >= floor_of(measure)]

    def flat_rate(point: IoPoint) -> float:
        flat = measure.flat_of(point.cell)
        return flat.samples_per_s if flat else 0.0

    if reach:
        return min(reach, key=lambda p: (p.cell.readers, p.cell.depth, -flat_rate(p)))
    return max(points, key=busy, default=None)


def bounds(measure: IoMeasure, cache: Cache) -> str | None:
    """Return, for each format, the compute time below which it is I/O-bound."""
    floor, texts = floor_of(measure), []
    for best in best_of_each_format(measure.flat, cache):
        reached_s = [
            point.compute_s
            for point in own(in_cache(measure.with_compute, cache))
            if point.cell.format == best.cell.format and busy(point) >= floor
        ]
        at = f"floor reached at {duration(min(reached_s))}" if reached_s else "floor never reached"
        name, least = PHRASES[best.cell.format], duration(balance_s(measure, best))
        texts.append(f"{name} below {least} per step ({at})")
    return f"I/O-bound: {joined(texts)}" if texts else None


def _place(cache: Cache) -> str:
    return "memory" if cache == "warm" else "disk"


def _busy_words(measure: IoMeasure, point: IoPoint) -> str:
    accelerator = measure.bench.setting.accelerator.upper() if measure.bench else ""
    only = "" if busy(point) >= floor_of(measure) else "only "
    where = f"{PHRASES[point.cell.format]} from {_place(point.cell.cache)}"
    profile = measure.bench.setting.profile.name if measure.bench else ""
    return f"{profile}: {accelerator} {only}{percent(busy(point), 1)} busy with {where}"


def headline(view: View) -> str:
    """Return the best utilisation of a measurement, or its best rate."""
    for at in loadings(view):
        points = [p for p in own(at.measure.paced) if p.utilisation is not None]
        if points:
            return _busy_words(at.measure, max(points, key=busy))
        ranks = fewest_ranks(at.measure)
        if found := fastest(best_of_each_format(at.measure.flat, at.cache, ranks)):
            name, rate = PHRASES[found.cell.format], three_digits(found.samples_per_s)
            return sentence(f"{name}: {rate} samples/s").rstrip(".")
    return "No way of loading was measured to its end yet"


def study_headline(view: View) -> str:
    """Return what suffices for the first profile, from the last cache."""
    profiles = {at.measure.name: at for at in loadings(view)}
    for at in profiles.values():
        if chosen := chosen_way(at.measure, at.cache):
            return _busy_words(at.measure, chosen)
    return NOTHING_COMPLETED


def keys(view: View) -> list[KeyFigure]:
    """Return the best utilisation from each state of the cache."""
    figures = []
    for at in loadings(view):
        points = own(in_cache(at.measure.paced, at.cache))
        if known := [point for point in points if point.utilisation is not None]:
            best, floor = max(known, key=busy), percent(floor_of(at.measure), 0)
            figures.append(
                KeyFigure(
                    label=at.label,
                    value=percent(busy(best), 1),
                    meaning=f"busy, {PHRASES[best.cell.format]}, {how(best.cell)}",
                    beside=f"floor {floor}; first batch after {duration(best.first_s)}",
                )
            )
    return figures


def balances(view: View) -> list[KeyFigure]:
    """Return the compute time at which the fastest way turns compute-bound."""
    figures = []
    for at in loadings(view):
        best, bench = fastest(best_of_each_format(at.measure.flat, at.cache)), at.measure.bench
        if best is not None and bench is not None:
            profile_s = duration(bench.setting.compute_s)
            figures.append(
                KeyFigure(
                    label=at.label,
                    value=duration(balance_s(at.measure, best)),
                    meaning="per step: below it the storage holds the accelerator up",
                    beside=f"{PHRASES[best.cell.format]}, {how(best.cell)}; the profile computes "
                    f"{profile_s}",
                )
            )
    return figures


def facts(view: View) -> list[str]:
    """Return what was measured."""
    benches = [row["_measure"].bench for row in view.data.runs if row["_measure"].bench]
    found = []
    for bench in benches[:1] if view.data.study.runs == [bench.bench for bench in benches] else ():
        setting = bench.setting
        found = [
            f"{setting.profile.name}{' (scaled)' if setting.scaled else ''}",
            f"{setting.num_samples:,} samples of {amount(setting.sample_bytes)} a rank",
            f"batches of {setting.batch_size}",
            f"{duration(setting.compute_s)} of compute per step on an emulated "
            f"{setting.accelerator.upper()}",
            bench.storage.file_system or "an unknown file system",
        ]
    return found


def conditions(measures: Sequence[IoMeasure]) -> Iterator[tuple[str, str]]:
    """Yield scaled compute times, caches that were not cold, and what was not measured."""
    runs_by_text: dict[str, list[str]] = {}
    for measure in measures:
        for text in _conditions_of(measure):
            runs_by_text.setdefault(text, []).append(measure.name)
    for text, names in runs_by_text.items():
        # A sentence that holds for all measurements is printed once.
        yield "" if len(names) == len(measures) else joined(names), text
    stores = [measure.bench.storage for measure in measures if measure.bench]
    kinds = list(dict.fromkeys(s.file_system or "an unknown file system" for s in stores))
    if kinds:
        yield (
            "",
            f"Measured on {joined(kinds)}; neither another file system, such as one over a "
            "network, nor the way from memory to a GPU was measured. An accelerator is "
            "emulated: this process sleeps while one would compute.",
        )


def _conditions_of(measure: IoMeasure) -> Iterator[str]:
    if bench := measure.bench:
        if cold := cold_cache(measure):
            yield cold
        if bench.setting.scaled:
            yield f"Scaled: {'; '.join(bench.setting.scaled)}."
        for name, why in bench.left_out.items():
            yield f"Not measured: {PHRASES.get(name, name)}; {why}."
    if wrong := sum(point.wrong for point in measure.points):
        yield f"{wrong:,} samples were not those asked for: no rate here counts."


def cold_cache(measure: IoMeasure) -> str | None:
    """Return a sentence on how cold the cold epochs were."""
    points = in_cache(measure.points, "cold")
    cold = [is_cold(point) for point in points]
    if not points or measure.bench is None:
        return None
    if all(one is None for one in cold):
        return "Whether the files were out of memory could not be verified here."
    if all(cold):
        names = "were forgotten, too" if measure.bench.setting.drops_names else "may have been"
        return (
            "Before each cold epoch no page of the files was in memory (mincore); their names and "
            f"inodes {names}."
        )
    worst = max(points, key=lambda p: p.resident or 0.0)
    return (
        f"Cold is not cold here: up to {percent(worst.resident or 0, 0)} of the pages of "
        f"{PHRASES[worst.cell.format]} stayed in memory."
    )


def written_rows(view: View) -> list[Row]:
    """Return a row a format that was written for a run."""
    benches = [(r["run"], r["_measure"].bench) for r in view.data.runs if r["_measure"].bench]
    found = chain.from_iterable(((run, one) for one in bench.generated) for run, bench in benches)
    return [
        {
            "run": run,
            "format": one.format,
            "files": one.num_files,
            "bytes": one.bytes,
            "write_s": one.write_s,
        }
        for run, one in found
    ]
