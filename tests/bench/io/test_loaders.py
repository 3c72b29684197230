"""Readers are kept from one epoch to the next, and have let go of the files before a cold one."""

import sys
from pathlib import Path

import numpy as np
import pytest

from phalanx.bench.io.formats import Indices, PackedStore, Rows, Shape
from phalanx.bench.io.generate import DataLocation, data_files, generate, wrong_samples
from phalanx.bench.io.loaders import BatchReader, TorchLoader
from phalanx.bench.io.measure import LoaderBenchmark
from phalanx.bench.io.page_cache import drop, resident_share
from phalanx.bench.io.scaling import Workload
from phalanx.records.io import Cache, Format, IoCell, Loader

SHAPE = Shape(num_samples=60, sample_bytes=20_000, shard_samples=20)
WORK = Workload(
    num_samples=60, sample_bytes=20_000, batch_size=12, steps=5, compute_s=0.001, scaled=()
)


def cell_of(format_: Format, cache: Cache, loader: Loader = "phalanx") -> IoCell:
    return IoCell(
        format=format_, loader=loader, kind="threads", readers=2, depth=2, cache=cache, ranks=1
    )


def rows_of(indices: Indices) -> Rows:
    rows = np.zeros((len(indices), SHAPE.sample_bytes), np.uint8)
    rows[:, :8] = indices.astype("<u8").view(np.uint8).reshape(-1, 8)
    return rows


def test_a_warm_epoch_is_not_a_loaders_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is there, as in a training after the first batches."""
    location = DataLocation(root=tmp_path, shape=SHAPE)
    generate(location, ["npy"], 1, lambda *_: None)
    measurement = LoaderBenchmark(location, WORK, part=0, barrier=lambda: None)
    read: list[int] = []

    def counted(_: PackedStore, indices: Indices) -> Rows:
        read.append(len(indices))
        return rows_of(indices)

    monkeypatch.setattr(PackedStore, "read", counted)
    caches: tuple[Cache, ...] = ("warm", "warm", "cold", "warm")  # the cold one's loader stays
    for cache, expected in zip(caches, (120, 180, 240, 300), strict=True):
        timed = measurement.epoch(cell_of("npy", cache), 0.0, order=1)
        assert (timed.samples, sum(read)) == (60, expected)
    kept = measurement.epoch(cell_of("npy", "warm", "read-kept"), 0.0, order=1)
    assert (kept.samples, sum(read)) == (60, 300)
    measurement.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells")
def test_a_cold_epoch_after_a_warm_one_is_cold(tmp_path: Path) -> None:
    location = DataLocation(root=tmp_path, shape=SHAPE)
    formats: list[Format] = ["files", "tar", "npy"]
    generate(location, formats, 1, lambda *_: None)
    probe = data_files(location.part("files", 0))
    drop(probe)
    if resident_share(probe) != 0.0:
        pytest.skip("this file system lives in memory")
    measurement = LoaderBenchmark(location, WORK, part=0, barrier=lambda: None)
    for format_ in formats:
        for order, compute_s in enumerate((0.0, WORK.compute_s)):
            warm = measurement.epoch(cell_of(format_, "warm"), compute_s, order=order)
            cold = measurement.epoch(cell_of(format_, "cold"), compute_s, order=order)
            assert (warm.resident, cold.resident) == (1.0, 0.0)
            assert (warm.wrong, cold.wrong) == (0, 0)
            assert (warm.samples, len(cold.waits_s)) == (60, 5)
    measurement.close()


@pytest.mark.parametrize("batched", [False, True])
def test_two_epochs_of_pytorch_give_the_samples_that_were_asked_for(
    tmp_path: Path, batched: bool
) -> None:
    shape = Shape(num_samples=60, sample_bytes=100, shard_samples=20)
    location = DataLocation(root=tmp_path, shape=shape)
    generate(location, ["npy"], 1, lambda *_: None)
    fetch = BatchReader("npy", location.part("npy", 0), shape)
    loader = TorchLoader(fetch, readers=0, depth=0, batched=batched)
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(60)
        wanted = np.split(order, 5)
        got = list(loader.batches(wanted, 0))
        assert [wrong_samples(*pair) for pair in zip(got, wanted, strict=True)] == [0] * 5
    loader.close()
    fetch.close()
