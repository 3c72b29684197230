"""On ranks of two nodes: train on data that only rank 0's node has.

argv: a folder that each node has for itself, and one that all share. Every rank prints what is
refused, rank 0 whether the parameters are those of a run whose nodes share the data.
"""

import gzip
import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np

import phalanx
from phalanx.data.packed.index import Field
from phalanx.jobs.detect import detect
from phalanx.records.events import FinishedEvent
from phalanx.records.files import rank_file, read_events
from phalanx.train.config import TrainConfig
from phalanx.train.session import train

FOLDER, SHARED = map(Path, sys.argv[1:])
HOST = socket.gethostname()
OPTIONS: dict[str, Any] = {
    "model": "mlp", "strategy": "mpi", "batch_size": 32, "epochs": 1, "threads": 1,
    "validation_samples": 32, "train_samples": 128, "timeout_s": 60,
}  # fmt: skip


def make_pack(folder: Path) -> None:
    random = np.random.default_rng(0)
    fields = [
        Field(name="inputs", dtype="float32", shape=[1, 4, 4]),
        Field(name="targets", dtype="int64", shape=[]),
    ]
    for split, number in (("train", 200), ("validation", 40)):
        rows = {
            "inputs": random.random((number, 1, 4, 4), np.float32),
            "targets": random.integers(3, size=number),
        }
        with phalanx.PackWriter(
            folder / split, fields=fields, shard_bytes=2000, classes=["a", "b", "c"]
        ) as writer:
            writer.add_rows(rows)


def make_fashion(folder: Path) -> None:
    """Write files of the sizes that Fashion-MNIST has."""
    folder.mkdir(parents=True)
    for split, number in (("train", 60_000), ("t10k", 10_000)):
        images = np.zeros((number, 28, 28), np.uint8)
        images[:, :10] = (np.arange(number) % 251)[:, None, None]
        labels = (np.arange(number) % 10).astype(np.uint8)
        for kind, array in (("images", images), ("labels", labels)):
            header = np.array([0x800 + array.ndim, *array.shape], ">i4").tobytes()
            path = folder / f"{split}-{kind}-idx{array.ndim}-ubyte.gz"
            path.write_bytes(gzip.compress(header + array.tobytes(), 1))


def run(name: str, **options: Any) -> str:
    """Train; return the hash of the parameters on rank 0, what is refused on every rank."""
    config = TrainConfig.from_options(**OPTIONS, **options, run_dir=FOLDER / "records" / name)
    try:
        train(config, LAUNCHED)
    except phalanx.UserError as error:
        return str(error)
    if LAUNCHED.rank:
        return ""
    events = read_events(rank_file(FOLDER / "records" / name, 0))
    return next(e.parameters_sha256 for e in events if isinstance(e, FinishedEvent))


found = detect(os.environ)
assert found is not None
LAUNCHED = found
if LAUNCHED.rank == 0:
    for folder in (FOLDER, SHARED):
        make_pack(folder / "pack")
        make_fashion(folder / "root/fashion")
staging = {"data": FOLDER / "pack", "stage": FOLDER / "stage"}
print(f"refused {HOST}: {run('refused', data=FOLDER / 'pack')}", flush=True)
print(f"too small {HOST}: {run('small', **staging, stage_mb=0.001)}", flush=True)
same = {
    "pack": run("pack", data=SHARED / "pack") == run("pack-here", **staging),
    "fashion": run("fashion", dataset="fashion", data_root=SHARED / "root")
    == run("fashion-here", dataset="fashion", data_root=FOLDER / "root"),
}
if LAUNCHED.rank == 0:
    print(f"same {same}", flush=True)
