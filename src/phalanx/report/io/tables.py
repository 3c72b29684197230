"""The tables of loading. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.io import READS
from phalanx.report.content import Table, make_table
from phalanx.report.format import UNKNOWN, amount, duration, fixed, percent, three_digits
from phalanx.report.io.comparison import compare_loaders, rivals
from phalanx.report.io.measures import IoMeasure, IoPoint

COLUMNS = (
    "format|cache|loader|readers|ahead#|ranks#|samples/s#|MB/s#|MB/s range#|×read#|×torch#|"
    "first#|stalls#|busy#|busy range#"
)
SHORT = {"threads": "thr.", "processes": "proc."}
MEGABYTE = 1e6


def ways(measure: IoMeasure) -> list[Table]:
    """Return a table of every way of loading, flat out and with compute."""
    if measure.bench is None or not measure.points:
        return []
    setting = measure.bench.setting
    note = (
        "samples/s and MB/s of 10⁶ bytes flat out. Time to the first batch, stalls (waits over "
        f"{duration(setting.stall_s)}, an epoch of {setting.steps} steps) and busy (compute ÷ "
        f"total time): with {duration(setting.compute_s)} of compute a step. Medians over "
        f"{setting.runs} epochs. ×read: times the time of a plain read of the same files; ×torch: "
        "times the samples/s of DataLoader with as many readers and batches ahead."
    )
    rows = [row(measure, point) for point in measure.flat]
    return [make_table(f"Ways of loading, {measure.name}", note, COLUMNS, rows)]


def row(measure: IoMeasure, flat: IoPoint) -> tuple[str, ...]:
    """The cells of COLUMNS."""
    cell = flat.cell
    paced = next((p for p in measure.paced if p.cell == cell), None)
    low, high = flat.range_bytes_per_s
    shares = paced.range_utilisation if paced else None
    return (
        cell.format,
        cell.cache,
        "torch, batched" if cell.loader == "torch-batched" else cell.loader,
        f"{cell.readers} {SHORT[cell.kind]}" if cell.readers else UNKNOWN,
        str(cell.depth) if cell.depth else UNKNOWN,
        str(cell.ranks),
        three_digits(flat.samples_per_s),
        three_digits(flat.bytes_per_s / MEGABYTE),
        f"{three_digits(low / MEGABYTE)}–{three_digits(high / MEGABYTE)}",
        times_read(measure, flat),
        times_torch(measure, flat),
        duration(paced.first_s) if paced else UNKNOWN,
        f"{paced.stalls:g}" if paced else UNKNOWN,
        percent(paced.utilisation, 1) if paced and paced.utilisation is not None else UNKNOWN,
        f"{100 * shares[0]:.1f}–{100 * shares[1]:.1f}" if shares else UNKNOWN,
    )


def times_read(measure: IoMeasure, point: IoPoint) -> str:
    others = rivals(measure, point, "read") if point.cell.loader not in READS else []
    return three_digits(1 / compare_loaders(point, others[0]).gain) if others else UNKNOWN


def times_torch(measure: IoMeasure, point: IoPoint) -> str:
    """Return the speed-up over PyTorch with the same number of readers and batches ahead."""
    if point.cell.loader != "phalanx":
        return UNKNOWN
    same = [
        other
        for other in rivals(measure, point, "torch")
        if (other.cell.readers, other.cell.depth) == (point.cell.readers, point.cell.depth)
    ]
    return three_digits(compare_loaders(point, same[0]).gain) if same else UNKNOWN


def written(measures: Sequence[IoMeasure]) -> list[Table]:
    """The data on the disk."""
    rows = [
        (
            measure.name,
            one.format,
            f"{one.num_files:,}",
            amount(one.bytes),
            UNKNOWN if one.write_s is None else fixed(one.write_s),
        )
        for measure in measures
        if measure.bench
        for one in measure.bench.generated
    ]
    note = "Random bytes, the same every time. Time to write them and bring them to the disk (s)."
    return [make_table("Data", note, "run|format|files#|bytes#|written (s)#", rows)] if rows else []


def storage(measures: Sequence[IoMeasure]) -> list[Table]:
    rows = [
        (
            measure.name,
            measure.status,
            measure.bench.storage.file_system or UNKNOWN,
            measure.bench.storage.device or UNKNOWN,
            amount(measure.bench.storage.free_bytes),
            measure.error or "",
        )
        for measure in measures
        if measure.bench
    ]
    return [make_table("Runs", "", "run|status|file system|device|free before#|error", rows)]
