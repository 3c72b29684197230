"""Records of loading as rows: a way and pace of one measurement, with a value a measured epoch; and
claims about them: how busy, how fast, and which to take.

An epoch ends with its slowest rank; samples and bytes are summed over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from phalanx.errors import UserError
from phalanx.records.files import rank_file, record_file
from phalanx.records.io import READS, Cache, IoBench, IoCell, IoEndEvent, IoEpochEvent
from phalanx.records.schema import Study
from phalanx.report.cells import Measure, Row, best_by
from phalanx.report.claims import NOTHING_COMPLETED, TIMES, agreement
from phalanx.report.content import KeyFigure
from phalanx.report.folder import Measurement, by_round, read_measurement, study_of
from phalanx.report.format import amount, duration, joined, percent, sentence, span, three_digits
from phalanx.report.statistics import Interval, not_told_apart
from phalanx.report.values import StudyRows, Told, View

MEGABYTE = 1e6
DEFAULT_FLOOR = 0.9  # used if a profile names none
COLD_BELOW = 0.01  # share of the files' pages in memory
PHRASES = {
    "files": "many small files",
    "tar": "tar shards",
    "npy": "memory maps",
    "hdf5": "HDF5",
    "parquet": "Parquet",
}
LOADERS = {
    "phalanx": "Phalanx",
    "torch": "DataLoader",
    "torch-batched": "DataLoader, whole batches",
    "read": "plain read",
    "read-kept": "plain read, kept",
}
CACHE_LABELS: dict[Cache, str] = {"warm": "from memory (warm)", "cold": "from the disk (cold)"}
RATE = Measure("samples_per_s")
QUANTITIES = (
    *(RATE, *(Measure(n) for n in ("mb_per_s", "first_ms", "stalls", "utilisation"))),
    *(Measure("resident", how=max), Measure("wrong", how=sum)),
)
Loading = Measurement[IoBench]


def holds_io(folder: Path) -> bool:
    return record_file(folder, IoBench).exists()


def read_loading(folder: Path) -> Loading:
    """Read one measurement; what is missing or damaged is told by its status."""

    def files(bench: IoBench) -> list[Path]:
        numbers = bench.setting.ranks
        return [rank_file(Path(f"ranks-{n}"), rank) for n in numbers for rank in range(n)]

    return read_measurement(folder, IoBench, files, IoEndEvent)


def read_io_rows(folder: Path) -> StudyRows:
    """Read one measurement of loading, a panel for each state of the cache, or a study of several,
    also for each profile: its measurements differ in their compute time alone, and are one.

    Raises: UserError when the records cannot be read.
    """
    study = study_of(folder)
    runs = [read_loading(folder / name) for name in (study.runs if study else [""])]
    benches = [run.bench for run in runs if run.bench]
    rows = [row for run in runs if run.bench for row in way_rows(run.bench, run)]
    longest: dict[str, IoBench] = {}
    for bench in sorted(benches, key=lambda bench: -bench.setting.compute_s):
        longest.setdefault(bench.setting.profile.name, bench)
    for number, row in enumerate(rows):
        profile, label = row["profile"], CACHE_LABELS[row["cache"]]
        row |= {"run": profile, "panel": f"{profile}, {label}"} if study else {"panel": label}
        row |= {"number": number, "_bench": longest[profile]}
        row["floor"] = longest[profile].setting.profile.utilisation_floor or DEFAULT_FLOOR
    if study is None:
        (run,) = runs
        if run.bench is None:
            raise UserError(run.error or f"{folder} holds no io.json")
        started_at, names = run.bench.started_at, [run.name]
        study = Study(
            study=run.name, kind="io", command=run.bench.command, started_at=started_at, runs=names
        )
    return StudyRows(
        study=study,
        folder=folder,
        runs=[_run_row(run) for run in runs],
        rows=rows,
        environments=[bench.environment for bench in benches],
        notes=list(conditions(runs, rows)),
    )


def _run_row(run: Loading) -> Row:
    storage = run.bench.storage if run.bench else None
    return {
        "run": run.name,
        "status": run.status,
        "error": run.error,
        "file_system": storage.file_system or None if storage else None,
        "device": storage.device or None if storage else None,
        "free_bytes": storage.free_bytes if storage else None,
        "_bench": run.bench,
    }


def way_rows(bench: IoBench, run: Loading) -> Iterator[dict[str, Any]]:
    """Yield a row a way and pace of which every rank has finished a round."""
    found = by_round(run.ranks, IoEpochEvent, lambda event: (event.cell, event.compute_s))
    for (way, compute_s), rounds in found.items():
        # The first warms up, and those that are incomplete on any rank do not count.
        epochs = [parts for n, parts in sorted(rounds.items()) if n > 0 and len(parts) == way.ranks]
        if epochs:
            yield {
                **_of_way(way, compute_s),
                **_of_epochs(epochs, compute_s, bench.setting.stall_s),
                "source": run.name,
                "run": run.name,
                "profile": bench.setting.profile.name,
            }


def _of_way(way: IoCell, compute_s: float) -> dict[str, Any]:
    readers = f"{way.readers} {way.kind}" if way.readers else "no readers"
    return {
        "_way": way,
        "format_option": way.format,
        "format": PHRASES[way.format],
        "loader": LOADERS[way.loader],
        "kind": way.kind,
        "cache": way.cache,
        "readers": way.readers,
        "depth": way.depth,
        "ranks": way.ranks,
        "way": readers if way.loader not in READS else "one process",
        "compute_s": compute_s,
        "compute_ms": compute_s * 1e3,
    }


def _of_epochs(
    epochs: Sequence[Sequence[IoEpochEvent]], compute_s: float, stall_s: float
) -> dict[str, tuple[Any, ...]]:
    """Return a value an epoch, over all ranks. epochs: of each the events of the ranks."""
    times = [(parts, max(part.total_s for part in parts)) for parts in epochs]
    known = [[part.resident for part in parts if part.resident is not None] for parts in epochs]
    return {
        "total_s": tuple(total_s for _, total_s in times),
        "samples_per_s": tuple(sum(p.samples for p in parts) / s for parts, s in times),
        "mb_per_s": tuple(sum(p.bytes for p in parts) / s / MEGABYTE for parts, s in times),
        "first_ms": tuple(1e3 * max(part.waits_s[0] for part in parts) for parts in epochs),
        "stalls": tuple(
            max(sum(wait > stall_s for wait in part.waits_s) for part in parts) for parts in epochs
        ),
        "utilisation": tuple(compute_s * len(parts[0].waits_s) / s for parts, s in times)
        if compute_s
        else (),
        "resident": tuple(max(shares) for shares in known if shares),
        "wrong": tuple(sum(part.wrong for part in parts) for parts in epochs),
        "_waits_s": tuple(tuple(w for part in parts for w in part.waits_s) for parts in epochs),
    }


def ways_of(view: View) -> list[Row]:
    """Return the cells of all panels, as they were measured."""
    return sorted(view.frame("cells"), key=lambda row: int(row["number"]))


def conditions(runs: Sequence[Loading], rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield scaled compute times, caches that were not cold, and what was not measured."""
    runs_by_text: dict[str, list[str]] = {}
    for run in runs:
        for text in _conditions_of(run, [row for row in rows if row["source"] == run.name]):
            runs_by_text.setdefault(text, []).append(run.name)
    for text, names in runs_by_text.items():
        # A sentence that holds for all measurements is printed once.
        yield "" if len(names) == len(runs) else joined(names), text
    stores = [run.bench.storage for run in runs if run.bench]
    kinds = list(dict.fromkeys(s.file_system or "an unknown file system" for s in stores))
    if kinds:
        yield (
            "",
            f"Measured on {joined(kinds)}; other file systems (such as network ones) and copies "
            "from memory to a GPU were not measured. The accelerator is emulated: the process "
            "sleeps while it would compute.",
        )


def _conditions_of(run: Loading, rows: Sequence[Row]) -> Iterator[str]:
    if bench := run.bench:
        if cold := cold_cache(bench, [row for row in rows if row["cache"] == "cold"]):
            yield cold
        if bench.setting.scaled:
            yield f"Scaled: {'; '.join(bench.setting.scaled)}."
        for name, why in bench.left_out.items():
            yield f"Not measured: {PHRASES.get(name, name)}; {why}."
    if wrong := sum(sum(row["wrong"]) for row in rows):
        yield f"{wrong:,} samples were not the requested ones: no rate here is valid."


def cold_cache(bench: IoBench, cold: Sequence[Row]) -> str | None:
    """Return a sentence on how cold the cold epochs were."""
    if not cold:
        return None
    known = [(max(row["resident"]), row["format"]) for row in cold if row["resident"]]
    if not known:
        return "Whether the page cache was empty could not be verified here."
    share, worst = max(known, key=itemgetter(0))
    if share <= COLD_BELOW and len(known) == len(cold):
        names = "were forgotten, too" if bench.setting.drops_names else "may have been"
        return (
            "Before each cold epoch no page of the files was cached (mincore); their names and "
            f"inodes {names}."
        )
    return (
        f"The cache was not cold: up to {percent(share, 0)} of the pages of {worst} stayed in "
        "memory."
    )


SAME_WITHIN = 0.05  # ratios of rounds closer to 1 are called none
Ways = Sequence[Row]
"""Cells of one panel: from one state of the cache."""


def compare_loaders(ours: Row, theirs: Row) -> Interval:
    """Return the ratio of samples/s of ours and theirs, flat out, in the same rounds: the median
    over the rounds, and their range."""
    rates = (row["_cell"].values(RATE.column) for row in (ours, theirs))
    gains = [own / other for own, other in zip(*rates, strict=False)]
    return Interval(estimate=RATE.how(gains), low=min(gains), high=max(gains))


def own(ways: Iterable[Row]) -> list[Row]:
    return [way for way in ways if way["_way"].loader == "phalanx"]


def flat(ways: Iterable[Row]) -> list[Row]:
    """Return the ways flat out: nothing is computed."""
    return [way for way in ways if not way["compute_s"]]


def with_compute(ways: Iterable[Row]) -> list[Row]:
    return [way for way in ways if way["compute_s"]]


def paced(ways: Iterable[Row]) -> list[Row]:
    """Return the ways with the compute time of the profile."""
    return [way for way in ways if way["compute_s"] == way["_bench"].setting.compute_s]


def busy(way: Row) -> float:
    """Return the utilisation; 0 of what was measured flat out."""
    return way["utilisation"] or 0.0


def rate(way: Row) -> float:
    found: float = way["samples_per_s"]
    return found


def on_fewest_ranks(ways: Ways) -> list[Row]:
    fewest = min((way["ranks"] for way in ways), default=1)
    return [way for way in ways if way["ranks"] == fewest]


def best_of_each_format(ways: Ways) -> list[Row]:
    """Return the fastest of our ways in each format flat out, on the fewest ranks."""
    return list(best_by(own(flat(on_fewest_ranks(ways))), ["format"], rate).values())


def fastest(ways: Iterable[Row]) -> Row | None:
    return max(ways, key=rate, default=None)


def rivals(ways: Ways, way: Row, loader: str) -> list[Row]:
    """Return the ways of another loader over the same data, cache and ranks, flat out."""
    same = ("format", "cache", "ranks")
    return [
        other
        for other in flat(ways)
        if other["_way"].loader == loader and all(other[name] == way[name] for name in same)
    ]


def times_read(ways: Ways, way: Row) -> float | None:
    others = rivals(ways, way, "read") if way["_way"].loader not in READS else []
    return 1 / compare_loaders(way, others[0]).estimate if others else None


def times_torch(ways: Ways, way: Row) -> float | None:
    """Return the speed-up over PyTorch with the same number of readers and batches ahead."""
    same = [
        other
        for other in rivals(ways, way, "torch")
        if (other["readers"], other["depth"]) == (way["readers"], way["depth"])
    ]
    return compare_loaders(way, same[0]).estimate if same and own([way]) else None


def balance_s(way: Row) -> float:
    """Return the compute time of a step below which a way cannot keep up: of a batch flat out."""
    batch: int = way["_bench"].setting.batch_size * way["ranks"]
    return batch / rate(way)


def how(way: Row) -> str:
    """Return the readers in words: 2 threads, 4 batches ahead."""
    cell = way["_way"]
    if cell.loader in READS:
        return "one process"
    if not cell.readers:
        return "no readers"
    one = {"threads": "thread", "processes": "process"}[cell.kind]
    readers = f"{cell.readers} {one if cell.readers == 1 else cell.kind}"
    return f"{readers}, {cell.depth} {'batch' if cell.depth == 1 else 'batches'} ahead"


# -- Claims ----------------------------------------------------------------------------------------


def claim(question: Callable[[Ways], str | None]) -> Callable[[View], Iterator[Told]]:
    """Return a claim about each panel."""

    def tell(view: View) -> Iterator[Told]:
        for label, ways in view.by_panel.items():
            if text := question(ways):
                yield Told(text, label=label)

    return tell


def utilisation(ways: Ways) -> str | None:
    """Return the formats that keep the accelerator busy, and those that do not."""
    best = best_by(own(paced(ways)), ["format"], busy)
    if not best:
        return None
    floor = ways[0]["floor"]
    words = [(f"{w['format']} ({percent(busy(w), 1)})", busy(w) >= floor) for w in best.values()]
    reach = joined([text for text, is_reached in words if is_reached])
    below = [text for text, is_reached in words if not is_reached]
    holds = f"reach the floor of {percent(floor, 0)}{': ' * bool(reach)}{reach}"
    return agreement(len(best), holds, below, "formats").text


def bound(ways: Ways) -> str | None:
    """Return the compute time from which the fastest way keeps up, relative to the profile's."""
    best = fastest(best_of_each_format(ways))
    if best is None:
        return None
    setting, least_s = best["_bench"].setting, balance_s(best)
    margin = setting.compute_s / least_s
    which = "compute-bound" if margin >= 1 else "I/O-bound"
    far = f"{margin:.1f} times what it takes" if margin >= 1 else f"{percent(margin, 0)} of that"
    return (
        f"a batch of {amount(setting.batch_size * setting.sample_bytes)} takes "
        f"{duration(least_s)} from {best['format']}; a step computes "
        f"{duration(setting.compute_s)}, {far}: {which}"
    )


def fastest_format(ways: Ways) -> str | None:
    """Return the fastest format, or that it cannot be told from others."""
    found = sorted(best_of_each_format(ways), key=rate, reverse=True)
    if len(found) < 2:
        return None
    best, *others = found
    least = others[-1]
    near = not_told_apart(
        others, lambda other: compare_loaders(best, other), neutral=1 + SAME_WITHIN
    )
    facts = f"{three_digits(rate(best))} samples/s with {how(best)}, "
    facts += f"{rounds(compare_loaders(best, least))} those of {least['format']}"
    if near:
        names = joined([way["format"] for way in near])
        return f"No clear winner among {len(found)} formats: {best['format']} ({facts}) and {names}"
    return f"{best['format']} is the fastest of {len(found)} formats: {facts}"


def rounds(interval: Interval) -> str:
    """Return a ratio with its range over the rounds."""
    return f"{interval.estimate:.2f}{TIMES} (rounds {span(interval)})"


def against_torch(ways: Ways) -> str | None:
    """Compare with PyTorch's DataLoader, in the fastest format that both read."""
    for way in sorted(best_of_each_format(ways), key=rate, reverse=True):
        theirs = [r for name in ("torch", "torch-batched") for r in rivals(ways, way, name)]
        if best := fastest(theirs):
            gain, other = compare_loaders(way, best), LOADERS[best["_way"].loader]
            return compare_rounds(f"Phalanx from {way['format']}", other, gain)
    return None


def compare_rounds(subject: str, against: str, interval: Interval) -> str:
    """Return a comparison by rounds in a sentence; what is within SAME_WITHIN of 1 is none."""
    if interval.verdict(1 + SAME_WITHIN) == "higher":
        return f"{subject}: {rounds(interval)} as fast as {against}"
    if interval.verdict(1 / (1 + SAME_WITHIN)) == "lower":
        return f"{subject}: {rounds(interval.inverse)} slower than {against}"
    return f"No difference between {subject} and {against}: {rounds(interval)}"


def choice(ways: Ways) -> str | None:
    """Return the cheapest way that reaches the floor at the profile's own compute time."""
    chosen = chosen_way(ways)
    if chosen is None:
        return None
    floor, step = percent(chosen["floor"], 0), duration(chosen["_bench"].setting.compute_s)
    reached, name = percent(busy(chosen), 1), chosen["format"]
    if busy(chosen) >= chosen["floor"]:
        text = f"at {step} per step {name} with {how(chosen)} suffice: busy {reached}"
        return f"{text}, floor {floor}"
    text = f"at {step} per step no format reaches {floor}; the best is {reached}, with {name}"
    return f"{text}, {how(chosen)}"


def chosen_way(ways: Ways) -> Row | None:
    """Return the least that reaches the floor, or what comes nearest to it."""
    found, rates = own(paced(ways)), {way["_way"]: rate(way) for way in flat(ways)}
    if reach := [way for way in found if busy(way) >= way["floor"]]:
        return min(reach, key=lambda w: (w["readers"], w["depth"], -rates.get(w["_way"], 0.0)))
    return max(found, key=busy, default=None)


def bounds(ways: Ways) -> str | None:
    """Return, for each format, the compute time below which it is I/O-bound."""
    texts = []
    for best in best_of_each_format(ways):
        reached_s = [
            way["compute_s"]
            for way in own(with_compute(ways))
            if way["format"] == best["format"] and busy(way) >= way["floor"]
        ]
        at = f"floor reached at {duration(min(reached_s))}" if reached_s else "floor never reached"
        texts.append(f"{best['format']} below {duration(balance_s(best))} per step ({at})")
    return f"I/O-bound: {joined(texts)}" if texts else None


def _busy_words(way: Row) -> str:
    setting = way["_bench"].setting
    only = "" if busy(way) >= way["floor"] else "only "
    where = f"{way['format']} from {'memory' if way['cache'] == 'warm' else 'disk'}"
    name = f"{setting.profile.name}: {setting.accelerator.upper()}"
    return f"{name} {only}{percent(busy(way), 1)} busy with {where}"


def headline(view: View) -> str:
    """Return the best utilisation of a measurement, or its best rate."""
    ways = view.frame("cells")
    if found := own(paced(ways)):
        return _busy_words(max(found, key=busy))
    for each in view.by_panel.values():
        if best := fastest(best_of_each_format(each)):
            return sentence(f"{best['format']}: {three_digits(rate(best))} samples/s").rstrip(".")
    return "No configuration was measured completely yet"


def study_headline(view: View) -> str:
    """Return what suffices for the first profile, from the last cache."""
    profiles = {ways[0]["run"]: ways for ways in view.by_panel.values()}
    for ways in profiles.values():
        if chosen := chosen_way(ways):
            return _busy_words(chosen)
    return NOTHING_COMPLETED


def keys(view: View) -> list[KeyFigure]:
    """Return the best utilisation from each state of the cache."""
    figures = []
    for label, ways in view.by_panel.items():
        if best := max(own(paced(ways)), key=busy, default=None):
            first, floor = duration(best["first_ms"] / 1e3), percent(best["floor"], 0)
            figures.append(
                KeyFigure(
                    label,
                    percent(busy(best), 1),
                    f"busy, {best['format']}, {how(best)}",
                    f"floor {floor}; first batch after {first}",
                )
            )
    return figures


def balances(view: View) -> list[KeyFigure]:
    """Return the compute time at which the fastest way turns compute-bound."""
    figures = []
    for label, ways in view.by_panel.items():
        if best := fastest(best_of_each_format(ways)):
            profile_s = duration(best["_bench"].setting.compute_s)
            figures.append(
                KeyFigure(
                    label,
                    duration(balance_s(best)),
                    "per step; below it the accelerator waits for storage",
                    f"{best['format']}, {how(best)}; the profile computes {profile_s}",
                )
            )
    return figures


def facts(view: View) -> list[str]:
    """Return what was measured."""
    for bench in [row["_bench"] for row in view.data.runs if row["_bench"]]:
        setting = bench.setting
        return [
            f"{setting.profile.name}{' (scaled)' if setting.scaled else ''}",
            f"{setting.num_samples:,} samples of {amount(setting.sample_bytes)} per rank",
            f"batches of {setting.batch_size}",
            f"{duration(setting.compute_s)} of compute per step on an emulated "
            f"{setting.accelerator.upper()}",
            bench.storage.file_system or "an unknown file system",
        ]
    return []
