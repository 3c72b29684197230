"""Trains on samples that other processes read; rank 1 kills one of them, or itself.

Words: folder for what readers may leave, by rank; "reader", "rank" or "nobody".
"""

import contextlib
import os
import signal
import sys
import time
from multiprocessing import process
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import Dataset

import phalanx
from phalanx.jobs.leftovers import parent_of, process_ids


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), index / 64), index % 3


def readers() -> list[int]:
    """Return the children of this rank's children, as its fork server starts them."""
    own = [pid for pid in process_ids() if parent_of(pid) == os.getpid()]
    return [pid for pid in process_ids() if parent_of(pid) in own]


def semaphores() -> set[Path]:
    """Return the named ones that this process has: it maps them by a name that they had before."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    inodes = {int(line.split()[4]) for line in maps if "/dev/shm/sem." in line}
    return {path for path in Path("/dev/shm").glob("sem.mp-*") if inode_of(path) in inodes}


def inode_of(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


def main(folder: Path, victim: str) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loading = {"num_workers": 1}
    run = phalanx.start(model, optimizer, Numbers(), batch_size=8, epochs=400, loading=loading)
    for batch in run:
        inputs, targets = batch.data
        run.backward(F.cross_entropy(run.model(inputs), targets))
        if batch.step != 2:
            continue
        left = semaphores()
        left.add(Path(process.current_process()._config["tempdir"]))  # type: ignore[attr-defined]
        note = folder / f".left-{run.rank}"
        note.write_text("\n".join(map(str, left)))
        note.rename(folder / f"left-{run.rank}")
        run.barrier()
        if run.rank == 1 and victim != "nobody":
            pids = readers() if victim == "reader" else [os.getpid()]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        if victim == "nobody":
            time.sleep(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
