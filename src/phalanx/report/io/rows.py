"""Records of loading as rows: a way and pace of one measurement, with a value a measured epoch.

An epoch ends with its slowest rank; samples and bytes are summed over the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from phalanx.errors import UserError
from phalanx.records.files import rank_file, record_file
from phalanx.records.io import READS, Cache, IoBench, IoCell, IoEndEvent, IoEpochEvent
from phalanx.records.schema import Study
from phalanx.report.cells import Measure, Row
from phalanx.report.folder import study_of
from phalanx.report.format import joined, percent
from phalanx.report.measurement import Measurement, by_round, read_measurement
from phalanx.report.values import StudyRows, View

MEGABYTE = 1e6
DEFAULT_FLOOR = 0.9  # where a profile names none
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
RATE = Measure(column="samples_per_s")
QUANTITIES = (
    *(RATE, *(Measure(column=n) for n in ("mb_per_s", "first_ms", "stalls", "utilisation"))),
    *(Measure(column="resident", how=max), Measure(column="wrong", how=sum)),
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
            f"Measured on {joined(kinds)}; neither another file system, such as one over a "
            "network, nor the way from memory to a GPU was measured. An accelerator is "
            "emulated: this process sleeps while one would compute.",
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
        yield f"{wrong:,} samples were not those asked for: no rate here counts."


def cold_cache(bench: IoBench, cold: Sequence[Row]) -> str | None:
    """Return a sentence on how cold the cold epochs were."""
    if not cold:
        return None
    known = [(max(row["resident"]), row["format"]) for row in cold if row["resident"]]
    if not known:
        return "Whether the files were out of memory could not be verified here."
    share, worst = max(known, key=itemgetter(0))
    if share <= COLD_BELOW and len(known) == len(cold):
        names = "were forgotten, too" if bench.setting.drops_names else "may have been"
        return (
            "Before each cold epoch no page of the files was in memory (mincore); their names and "
            f"inodes {names}."
        )
    return (
        f"Cold is not cold here: up to {percent(share, 0)} of the pages of {worst} stayed "
        "in memory."
    )
