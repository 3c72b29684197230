"""Loading against a plain read, many small files, PyTorch's DataLoader and an accelerator's demand.

    python benchmarks/loading.py             # five minutes on a quiet machine, 1.6 GB at a time
    python benchmarks/loading.py --quick     # little data: does it run?

Four measurements by `phalanx bench io`, each in one job in which all ways take turns:

    resnet50   samples of 114,660 B in files, tar shards and memory maps; warm and cold
    unet3d     large samples (scaled), asked for at an A100's bytes per second; warm and cold
    bert       samples of 2,500 B, beside PyTorch's DataLoader over the same shards, sample by
               sample and in whole batches
    mnist      the same with samples of 785 B

A fifth measures the cost of opening and closing a small file, beside reading it, and beside reading
as many bytes from one large file. No loader gains more over small files than that, nor more
than plain reads of the shards gain over plain reads of the files.

Cold: the files' pages are dropped before every epoch, verified by mincore; if root may write
/proc/sys/vm/drop_caches, so are their names and inodes. Each claim is printed with the value found
and whether it holds; ratios are of epochs of one round, the median and the range over five. Raw
values, commit and machine go to runs/benchmarks/loading.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from harness import save
from phalanx.bench.io.config import IoConfig, Rival
from phalanx.bench.io.formats import Shape, path_of, write_files
from phalanx.bench.io.generate import sample_shards
from phalanx.bench.io.job import run_io
from phalanx.bench.io.page_cache import can_drop_names
from phalanx.jobs.record import RUNS
from phalanx.records.io import Cache, Format
from phalanx.report.build import Content, content_of
from phalanx.report.cells import Row
from phalanx.report.loading import (
    MEGABYTE,
    Ways,
    best_of_each_format,
    compare_loaders,
    own,
    paced,
    rivals,
    ways_of,
)
from phalanx.report.values import View

Costs = dict[str, dict[str, float]]
PACKED: tuple[Format, ...] = ("tar", "npy")
READS: tuple[Rival, ...] = ("read", "read-kept")
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
    """A target, and the value found."""

    what: str
    wanted: str
    found: float
    low: float
    high: float
    holds: bool | None  # None: the disk does not give what the accelerator asks for


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A gain that no loader can exceed here."""

    what: str
    found: float
    low: float
    high: float


def configs(folder: Path) -> dict[str, IoConfig]:
    (folder / "mnist.yaml").write_text(MNIST)
    small = IoConfig(
        profile="bert", formats=PACKED, cache=("warm",), against=(*READS, "torch", "torch-batched")
    )
    return {
        "resnet50": IoConfig(
            formats=("files", *PACKED),
            against=READS,
            compute_scale=0.1,  # its targets are for full speed
            data_bytes="256MB",
            drop_names=can_drop_names(),
        ),
        "unet3d": IoConfig(profile="unet3d", formats=PACKED, against=READS, data_bytes="512MB"),
        "bert": small,
        "mnist": replace(small, profile=str(folder / "mnist.yaml")),
    }


def claims(found: dict[str, View]) -> Iterator[Claim]:
    for cache in ("warm", "cold"):
        yield from against_files(ways_in(found["resnet50"], cache), cache)
    for name, view in found.items():
        for cache in caches_of(view):
            for loader in READS:
                yield from against_read(name, ways_in(view, cache), cache, loader)
    for name in ("bert", "mnist"):
        for loader in ("torch", "torch-batched"):
            yield from against_torch(name, ways_in(found[name], "warm"), loader)
    for name, floor in (("unet3d", 0.9), ("bert", 0.99)):
        yield from utilisations(name, ways_of(found[name]), floor)


def caches_of(view: View) -> list[Cache]:
    return list(dict.fromkeys(way["cache"] for way in ways_of(view)))


def ways_in(view: View, cache: Cache) -> list[Row]:
    return [way for way in ways_of(view) if way["cache"] == cache]


def by_format(ways: Ways) -> dict[str, Row]:
    return {way["format_option"]: way for way in best_of_each_format(ways)}


def against_files(ways: Ways, cache: str) -> Iterator[Claim]:
    best = by_format(ways)
    for name in PACKED:
        gain = compare_loaders(best[name], best["files"])
        what = f"resnet50, {cache}: {name} against many small files, samples/s"
        yield at_least(what, 5.0, gain.estimate, gain.low, gain.high)


def against_read(name: str, ways: Ways, cache: Cache, loader: Rival) -> Iterator[Claim]:
    read = {"read": "a plain read", "read-kept": "a read that keeps"}[loader]
    for format_, way in by_format(ways).items():
        if format_ in PACKED:
            gain = compare_loaders(way, rivals(ways, way, loader)[0])
            times, low, high = 1 / gain.estimate, 1 / gain.high, 1 / gain.low
            what = f"{name}, {cache}: {format_} against {read}, time"
            yield Claim(
                what=what, wanted="≤ 1.2", found=times, low=low, high=high, holds=times <= 1.2
            )


def limits(view: View) -> Iterator[Limit]:
    """Yield how much faster plain reads of the shards are than plain reads of small files."""
    for cache in caches_of(view):
        ways = ways_in(view, cache)
        best = by_format(ways)
        files = rivals(ways, best["files"], "read")[0]
        for name in PACKED:
            gain = compare_loaders(rivals(ways, best[name], "read")[0], files)
            what = f"resnet50, {cache}: {name} against many small files when only read, samples/s"
            yield Limit(what=what, found=gain.estimate, low=gain.low, high=gain.high)


def against_torch(name: str, ways: Ways, loader: str) -> Iterator[Claim]:
    for format_, way in by_format(ways).items():
        gain = compare_loaders(way, rivals(ways, way, loader)[0])
        what = f"{name}, warm: {format_} against {loader}, samples/s"
        yield at_least(what, 2.0, gain.estimate, gain.low, gain.high)


def utilisations(name: str, ways: Ways, floor: float) -> Iterator[Claim]:
    for way in own(paced(ways)):
        what = f"{name}, {way['cache']}: {way['format_option']}, utilisation"
        ends = way["utilisation_low"], way["utilisation_high"]
        claim = at_least(what, floor, way["utilisation"], *ends)
        yield claim if claim.holds or disk_allows(ways, way) else replace(claim, holds=None)


def disk_allows(ways: Ways, way: Row) -> bool:
    """Return whether plain reads of the files are as fast as the accelerator asks for them."""
    setting = way["_bench"].setting
    asked = setting.batch_size * setting.sample_bytes / setting.compute_s
    return bool(rivals(ways, way, "read")[0]["mb_per_s"] * MEGABYTE >= asked)


def at_least(what: str, wanted: float, found: float, low: float, high: float) -> Claim:
    return Claim(
        what=what, wanted=f"≥ {wanted:g}", found=found, low=low, high=high, holds=found >= wanted
    )


def report(found: Sequence[Claim], least: Sequence[Limit], costs: Costs) -> None:
    for claim in found:
        holds = {True: "yes", False: "NO", None: "the files do not come fast enough"}[claim.holds]
        show_line(claim.what, claim.wanted, (claim.found, claim.low, claim.high), holds)
    for limit in least:
        show_line(limit.what, "", (limit.found, limit.low, limit.high), "limit")
    for name, cost in costs.items():
        what = f"resnet50, warm: {name}, µs of a processor"
        show_line(what, "", (cost["median"], cost["low"], cost["high"]), "a sample")


def show_line(what: str, wanted: str, found: tuple[float, float, float], note: str) -> None:
    cell = "{:.3g} [{:.3g} {:.3g}]".format(*found)
    print(f"{what:72} {wanted:>7}  {cell:>22}  {note}")


def document(
    contents: dict[str, Content], found: Sequence[Claim], least: Sequence[Limit], costs: Costs
) -> dict[str, Any]:
    views = {name: content.views[0] for name, content in contents.items()}
    benches = {name: view.data.runs[0]["_bench"] for name, view in views.items()}
    first = next(iter(benches.values()))
    return {
        "storage": msgspec.to_builtins(first.storage),
        "claims": [asdict(claim) for claim in found],
        "limits": [asdict(limit) for limit in least],
        "small_files_us": costs,
        "settings": {name: msgspec.to_builtins(bench.setting) for name, bench in benches.items()},
        "measurements": {
            name: {key: value for key, value in content.as_json().items() if key != "findings"}
            for name, content in contents.items()
        },
        "waits_s": {name: waits(view) for name, view in views.items()},
    }


def waits(view: View) -> list[dict[str, Any]]:
    """Return the wait for every batch of every epoch, for our ways with compute."""
    return [
        {
            "format": way["format_option"],
            "cache": way["cache"],
            "epochs": [[round(w, 7) for w in epoch] for epoch in way["_cell"]["_waits_s"]],
        }
        for way in own(paced(ways_of(view)))
    ]


def small_file_costs(folder: Path, *, num_files: int, file_bytes: int, runs: int = 7) -> Costs:
    """Return CPU microseconds per file: `median`, `low` and `high` of opening and closing it, of
    also reading it, and of reading as many bytes of one large file; after one warm-up round.

    Files are in the page cache, and no loader is used: none for small files can be faster.
    """
    folder.mkdir(parents=True)
    shape = Shape(num_samples=num_files, sample_bytes=file_bytes, shard_samples=num_files)
    write_files(folder, shape, sample_shards(shape, part=0))
    paths = [str(path_of(folder, number)) for number in range(num_files)]
    whole = folder / "whole"
    with whole.open("wb") as file:
        for path in paths:
            file.write(Path(path).read_bytes())
    into = [memoryview(bytearray(file_bytes))]

    def opened() -> None:
        for path in paths:
            os.close(os.open(path, os.O_RDONLY))

    def opened_and_read() -> None:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            os.readv(descriptor, into)
            os.close(descriptor)

    def read_from_one() -> None:
        descriptor = os.open(whole, os.O_RDONLY)
        for number in range(num_files):
            os.preadv(descriptor, into, number * file_bytes)
        os.close(descriptor)

    operations: dict[str, Callable[[], None]] = {
        "open, close": opened,
        "open, read, close": opened_and_read,
        "read out of one file": read_from_one,
    }
    took: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(runs + 1):
        for name, operation in operations.items():
            began = time.thread_time()
            operation()
            took[name].append(1e6 * (time.thread_time() - began) / num_files)
    return {
        name: {
            "median": statistics.median(times[1:]),
            "low": min(times[1:]),
            "high": max(times[1:]),
        }
        for name, times in took.items()
    }


def main(*, quick: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    RUNS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RUNS) as name:
        folder = Path(name)  # this disk: the system's temporary folder may live in memory
        contents: dict[str, Content] = {}
        for number, (profile, config) in enumerate(configs(folder).items(), 1):
            if quick:
                config = replace(config, data_bytes="8MB", runs=1, drop_names=False)
            console.print(f"\n[{number}/4] {config.title}", markup=False)
            command = ["phalanx", "bench", "io", "--profile", config.profile]
            run_io(config, folder / profile, command=command, console=console)
            found = content_of(folder / profile)
            found.print_summary(console)
            contents[profile] = found
        costs = small_file_costs(
            folder / "small", num_files=100 if quick else 2000, file_bytes=114_660
        )
    views = {name: content.views[0] for name, content in contents.items()}
    held, least = list(claims(views)), list(limits(views["resnet50"]))
    print()
    report(held, least, costs)
    if not quick:
        save(__file__, **document(contents, held, least, costs))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="use little data; save nothing")
    main(quick=parser.parse_args().quick)
