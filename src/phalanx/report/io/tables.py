"""The tables of loading. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phalanx.records.io import READS, Generated, IoBench
from phalanx.report.content import Column, Table, make_table, with_rows, words
from phalanx.report.format import amount, duration, fixed, grouped, one_decimal, three_digits
from phalanx.report.io.comparison import compare_loaders, rivals
from phalanx.report.io.measures import IoMeasure, IoPoint

LOADER_WORDS = {"torch-batched": "torch, batched"}
SHORT = {"threads": "thr.", "processes": "proc."}
MEGABYTE = 1e6


def columns(measure: IoMeasure) -> list[Column[IoPoint]]:
    """Return the columns over the points flat out; `busy` and what follows the first batch are of
    the same way with compute."""
    paced = {point.cell: point for point in measure.paced}

    def of_paced(value: Callable[[IoPoint], object]) -> Callable[[IoPoint], object]:
        return lambda flat: (point := paced.get(flat.cell)) and value(point)

    return [
        words("format", lambda p: p.cell.format),
        words("cache", lambda p: p.cell.cache),
        words("loader", lambda p: LOADER_WORDS.get(p.cell.loader, p.cell.loader)),
        words("readers", lambda p: f"{n} {SHORT[p.cell.kind]}" if (n := p.cell.readers) else None),
        Column("ahead", lambda p: p.cell.depth or None),
        Column("ranks", lambda p: p.cell.ranks),
        Column("samples/s", lambda p: p.samples_per_s, three_digits),
        Column("MB/s", lambda p: p.bytes_per_s / MEGABYTE, three_digits),
        Column(
            "MB/s range",
            lambda p: "–".join(three_digits(end / MEGABYTE) for end in p.range_bytes_per_s),
        ),
        Column("×read", lambda p: times_read(measure, p), three_digits),
        Column("×torch", lambda p: times_torch(measure, p), three_digits),
        Column("first", of_paced(lambda p: p.first_s), duration),
        Column("stalls", of_paced(lambda p: p.stalls), "{:g}".format),
        Column("busy", of_paced(lambda p: p.utilisation), one_decimal),
        Column(
            "busy range",
            of_paced(lambda p: p.range_utilisation),
            lambda ends: "–".join(f"{100 * end:.1f}" for end in ends),
        ),
    ]


def ways(measure: IoMeasure) -> Table:
    """Return a table of every way of loading, flat out and with compute."""
    title = f"Ways of loading, {measure.name}"
    if measure.bench is None:
        return make_table(title, "", (), ())
    setting = measure.bench.setting
    return make_table(
        title,
        "samples/s and MB/s of 10⁶ bytes flat out. Time to the first batch, stalls (waits over "
        f"{duration(setting.stall_s)}, an epoch of {setting.steps} steps) and busy (compute ÷ "
        f"total time): with {duration(setting.compute_s)} of compute per step. Medians over "
        f"{setting.runs} epochs. ×read: times the time of a plain read of the same files; ×torch: "
        "times the samples/s of DataLoader with as many readers and batches ahead.",
        columns(measure),
        measure.flat,
    )


def times_read(measure: IoMeasure, point: IoPoint) -> float | None:
    others = rivals(measure, point, "read") if point.cell.loader not in READS else []
    return 1 / compare_loaders(point, others[0]).estimate if others else None


def times_torch(measure: IoMeasure, point: IoPoint) -> float | None:
    """Return the speed-up over PyTorch with the same number of readers and batches ahead."""
    if point.cell.loader != "phalanx":
        return None
    same = [
        other
        for other in rivals(measure, point, "torch")
        if (other.cell.readers, other.cell.depth) == (point.cell.readers, point.cell.depth)
    ]
    return compare_loaders(point, same[0]).estimate if same else None


WRITTEN: tuple[Column[tuple[str, Generated]], ...] = (
    words("run", lambda pair: pair[0]),
    words("format", lambda pair: pair[1].format),
    Column("files", lambda pair: pair[1].num_files, grouped),
    Column("bytes", lambda pair: pair[1].bytes, amount),
    Column("written (s)", lambda pair: pair[1].write_s, fixed),
)
STORAGE: tuple[Column[tuple[IoMeasure, IoBench]], ...] = (
    words("run", lambda pair: pair[0].name),
    words("status", lambda pair: pair[0].status),
    words("file system", lambda pair: pair[1].storage.file_system or None),
    words("device", lambda pair: pair[1].storage.device or None),
    Column("free before", lambda pair: pair[1].storage.free_bytes, amount),
    words("error", lambda pair: pair[0].error or ""),
)


def all_tables(measures: Sequence[IoMeasure]) -> list[Table]:
    """Return the tables that have rows: ways of loading, the data on the disk, the runs."""
    benches = [(measure, measure.bench) for measure in measures if measure.bench]
    return with_rows(
        *map(ways, measures),
        make_table(
            "Data",
            "Random bytes, the same every time. Time to write them and bring them to the disk (s).",
            WRITTEN,
            [(measure.name, one) for measure, bench in benches for one in bench.generated],
        ),
        make_table("Runs", "", STORAGE, benches),
    )
