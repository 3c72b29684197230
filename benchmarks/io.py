"""Loading beside a plain read, many small files, PyTorch's DataLoader, and an accelerator that must
not wait.

    python benchmarks/io.py             # some five minutes on a quiet machine, 1.6 GB at a time
    python benchmarks/io.py --quick     # with little data, to see that it works

Four measurements by `phalanx bench io`, each in one job in which all ways take turns:

    resnet50   samples of 114,660 B in files, tar shards and memory maps; warm and cold
    unet3d     large samples (scaled), as many bytes a second asked for as by an A100; warm and cold
    bert       samples of 2,500 B, beside PyTorch's DataLoader over the same shards, sample by
               sample and in whole batches
    mnist      the same with samples of 785 B

Cold: the files' pages are dropped before every epoch, verified by mincore, and where root may write
/proc/sys/vm/drop_caches their names and inodes, too. What is wanted, what was found and whether it
holds is printed; ratios are of epochs of one round, the median and the range over five. Raw values,
commit and machine go to benchmarks/results/io.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from phalanx.bench.io.config import IoConfig
from phalanx.bench.io.job import run_io
from phalanx.bench.io.page_cache import can_drop_names
from phalanx.records.files import write_atomically
from phalanx.records.io import Cache, Format
from phalanx.report.io.comparison import best_of_each_format, duel, own, rivals
from phalanx.report.io.folder import read_io_measure
from phalanx.report.io.measures import IoMeasure, Point
from phalanx.report.io.summary import as_json, show
from phalanx.train.run import RUNS

RESULTS = Path(__file__).parent / "results" / "io.json"
PACKED: tuple[Format, ...] = ("tar", "npy")
MNIST = """\
name: mnist
source: MNIST, an image and its label; a step of 20 ms is made up
num_files: 1
samples_per_file: 60000
sample_bytes: 785
batch_size: 128
compute_s: {a100: 0.02}
"""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is wanted, and what was found."""

    what: str
    wanted: str
    found: float
    low: float
    high: float
    holds: bool | None  # None: the disk does not give what the accelerator asks for


def configs(folder: Path) -> dict[str, IoConfig]:
    (folder / "mnist.yaml").write_text(MNIST)
    small = IoConfig(
        profile="bert", formats=PACKED, cache=("warm",), against=("read", "torch", "torch-batched")
    )
    return {
        "resnet50": IoConfig(
            formats=("files", *PACKED),
            against=("read",),
            compute_scale=0.1,  # what is wanted of it is wanted flat out
            data_bytes="256MB",
            drop_names=can_drop_names(),
        ),
        "unet3d": IoConfig(profile="unet3d", formats=PACKED, against=("read",), data_bytes="512MB"),
        "bert": small,
        "mnist": replace(small, profile=str(folder / "mnist.yaml")),
    }


def claims(found: dict[str, IoMeasure]) -> Iterator[Claim]:
    for cache in ("warm", "cold"):
        yield from against_files(found["resnet50"], cache)
    for name, measure in found.items():
        for cache in ("warm", "cold") if name in ("resnet50", "unet3d") else ("warm",):
            yield from against_read(name, measure, cache)
    for name in ("bert", "mnist"):
        for loader in ("torch", "torch-batched"):
            yield from against_torch(name, found[name], loader)
    for name, floor in (("unet3d", 0.9), ("bert", 0.99)):
        yield from utilisations(name, found[name], floor)


def against_files(measure: IoMeasure, cache: Cache) -> Iterator[Claim]:
    best = {point.cell.format: point for point in best_of_each_format(measure.flat, cache)}
    for name in PACKED:
        gain = duel(best[name], best["files"])
        what = f"resnet50, {cache}: {name} against many small files, samples/s"
        yield at_least(what, 5.0, gain.gain, gain.low, gain.high)


def against_read(name: str, measure: IoMeasure, cache: Cache) -> Iterator[Claim]:
    for point in best_of_each_format(measure.flat, cache):
        if point.cell.format in PACKED:
            gain = duel(point, rivals(measure, point, "read")[0])
            times, low, high = 1 / gain.gain, 1 / gain.high, 1 / gain.low
            what = f"{name}, {cache}: {point.cell.format} against a plain read, time"
            yield Claim(
                what=what, wanted="≤ 1.2", found=times, low=low, high=high, holds=times <= 1.2
            )


def against_torch(name: str, measure: IoMeasure, loader: str) -> Iterator[Claim]:
    for point in best_of_each_format(measure.flat, "warm"):
        gain = duel(point, rivals(measure, point, loader)[0])
        what = f"{name}, warm: {point.cell.format} against {loader}, samples/s"
        yield at_least(what, 2.0, gain.gain, gain.low, gain.high)


def utilisations(name: str, measure: IoMeasure, floor: float) -> Iterator[Claim]:
    for point in own(measure.paced):
        low, high = point.range_utilisation or (0.0, 0.0)
        what = f"{name}, {point.cell.cache}: {point.cell.format}, utilisation"
        claim = at_least(what, floor, point.utilisation or 0.0, low, high)
        yield claim if claim.holds or disk_allows(measure, point) else replace(claim, holds=None)


def disk_allows(measure: IoMeasure, point: Point) -> bool:
    """Whether the files come as fast as the accelerator asks for them when they are only read."""
    assert measure.bench
    setting = measure.bench.setting
    asked = setting.batch_size * setting.sample_bytes / setting.compute_s
    return rivals(measure, point, "read")[0].bytes_per_s >= asked


def at_least(what: str, wanted: float, found: float, low: float, high: float) -> Claim:
    return Claim(
        what=what, wanted=f"≥ {wanted:g}", found=found, low=low, high=high, holds=found >= wanted
    )


def report(found: Sequence[Claim]) -> None:
    for claim in found:
        cell = f"{claim.found:.3g} [{claim.low:.3g} {claim.high:.3g}]"
        holds = {True: "yes", False: "NO", None: "the files do not come fast enough"}[claim.holds]
        print(f"{claim.what:62} {claim.wanted:>7}  {cell:>22}  {holds}")


def document(measures: dict[str, IoMeasure], found: Sequence[Claim]) -> dict[str, Any]:
    benches = {name: measure.bench for name, measure in measures.items() if measure.bench}
    first = next(iter(benches.values()))
    return {
        "command": "python benchmarks/io.py",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(first.environment),
        "storage": msgspec.to_builtins(first.storage),
        "claims": [asdict(claim) for claim in found],
        "settings": {name: msgspec.to_builtins(bench.setting) for name, bench in benches.items()},
        "measurements": {
            name: {key: value for key, value in as_json(measure).items() if key != "findings"}
            for name, measure in measures.items()
        },
        "waits_s": {name: waits(measure) for name, measure in measures.items()},
    }


def waits(measure: IoMeasure) -> list[dict[str, Any]]:
    """Of our ways with compute, the wait for every batch of every epoch."""
    return [_waits(point) for point in own(measure.paced)]


def _waits(point: Point) -> dict[str, Any]:
    cell = {"format": point.cell.format, "cache": point.cell.cache}
    return {**cell, "epochs": [[round(w, 7) for w in e.waits_s] for e in point.epochs]}


def main(*, quick: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RUNS) as name:
        folder = Path(name)  # on this disk: the system's temporary folder may live in memory
        measures = {}
        for number, (profile, config) in enumerate(configs(folder).items(), 1):
            if quick:
                config = replace(config, data_bytes="8MB", runs=1, drop_names=False)
            console.print(f"\n[{number}/4] {config.title}", markup=False)
            command = ["phalanx", "bench", "io", "--profile", config.profile]
            run_io(config, folder / profile, command=command, console=console)
            measures[profile] = read_io_measure(folder / profile)
            show(measures[profile], console)
    found = list(claims(measures))
    print()
    report(found)
    if not quick:
        write_atomically(RESULTS, json.dumps(document(measures, found), indent=1).encode())
        print(f"raw times: {RESULTS}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="with little data; nothing is kept")
    main(quick=parser.parse_args().quick)
