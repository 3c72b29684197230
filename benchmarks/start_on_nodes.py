"""Start of a job on three nodes, to its first step: Phalanx against plain `mpirun`, in turn.

    python benchmarks/start_on_nodes.py                # five rounds, as root; three minutes
    python benchmarks/start_on_nodes.py --rounds 9 --ranks-per-node 2

The nodes are virtual (tests/nodes/cluster.py): each has its own network, memory and processes, and
all share the cores of one machine. A program that imports torch and mpi4py and makes one step, with
gradients summed over all ranks, is started by

    mpirun      the MPI's own mpiexec, with the flags that nodes of root need
    bare        `phalanx launch --no-preflight`
    launch      `phalanx launch`, which examines the nodes first
    train       `phalanx train --no-preflight`: our own program
    preflight   `phalanx train`, which examines the nodes first

Every round starts each once. A start lasts from the command until rank 0 has made its first step.
The table shows the median of each, and the median and range of its difference to `mpirun` in the
same round. Raw values, commit and machine go to runs/benchmarks/start_on_nodes.json.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import phalanx
from harness import save
from phalanx.jobs.installation import find_mpi
from phalanx.records.files import rank_file

HERE, ROOT = Path(__file__).resolve().parent, Path(phalanx.__file__).parents[2]
STARTS = ("mpirun", "bare", "launch", "train", "preflight")
NUM_NODES = 3
TIMEOUT_S = 120
POLL_S = 0.005
DONE = "first step"
"""File that rank 0 writes after its first step."""


def step_main(folder: Path) -> None:
    """Make one step, as a program that knows nothing of Phalanx does."""
    import torch
    from mpi4py import MPI

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    loss = torch.nn.functional.cross_entropy(model(torch.randn(20, 64)), torch.arange(20) % 10)
    loss.backward()
    for param in model.parameters():
        assert param.grad is not None
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, param.grad.numpy())
    optimizer.step()
    if MPI.COMM_WORLD.Get_rank() == 0:
        (folder / DONE).touch()


class Starts:
    """The commands to compare, each timed until its first step."""

    def __init__(self, cluster: Any, local_ranks: int) -> None:
        self._cluster, self._local_ranks = cluster, local_ranks
        self._hosts = ",".join(f"{node}:{local_ranks}" for node in cluster.nodes)
        self._program = [__file__, "step"]

    def command(self, name: str, folder: Path) -> list[str]:
        """Return the command of a start. folder: place of its files, seen by all nodes."""
        if name == "mpirun":
            return [*self._mpiexec(), sys.executable, *self._program, str(folder)]
        ours = [sys.executable, "-m", "phalanx"]
        if name in ("bare", "launch"):
            words = ["launch", "--hosts", self._hosts, "--log-dir", str(folder / "logs")]
            words += ["--no-preflight"] if name == "bare" else []
            return [*ours, *words, *self._program, str(folder)]
        words = ["train", "--strategy", "mpi", "--hosts", self._hosts, "--dataset", "digits"]
        words += ["--train-samples", "1200", "--batch-size", "60", "--threads", "1"]
        words += ["--epochs", "1", "--run-dir", str(folder / "run")]
        return [*ours, *words, *(["--no-preflight"] if name == "train" else [])]

    def _mpiexec(self) -> list[str]:
        mpi = find_mpi(os.environ)
        ranks = str(NUM_NODES * self._local_ranks)
        if mpi.vendor == "openmpi":
            flags = ["--allow-run-as-root", "--bind-to", "none", "-H", self._hosts]
        else:
            names = ",".join(self._cluster.nodes)
            flags = ["-bind-to", "none", "-hosts", names, "-ppn", str(self._local_ranks)]
        return [str(mpi.mpiexec), *flags, "-n", ranks]

    def measure(self, name: str, folder: Path) -> float:
        """Return the seconds until the first step."""
        done = folder / DONE
        records = rank_file(folder / "run", 0)

        def has_stepped() -> bool:
            return done.exists() or (records.exists() and b'"step"' in records.read_bytes())

        folder.mkdir()
        log = folder / "output.log"
        began = time.monotonic()
        with self._cluster.start(
            "n0", self.command(name, folder), log, environment=VARIABLES
        ) as job:
            wait_for(has_stepped, log)
            took_s = time.monotonic() - began
            job.wait(TIMEOUT_S)
        if job.returncode:
            sys.exit(f"{name} failed:\n{log.read_text()}")
        shutil.rmtree(folder)
        return took_s


VARIABLES = {"OMP_NUM_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
"""Variables of all starts, as the nodes share the cores of this machine."""


def wait_for(condition: Callable[[], bool], log: Path) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > until:
            sys.exit(f"no step within {TIMEOUT_S} s:\n{log.read_text()}")
        time.sleep(POLL_S)


def report(seconds: dict[str, list[float]]) -> None:
    """Print medians, and differences to `mpirun` by round."""
    for name, times in seconds.items():
        differences = [ours - plain for ours, plain in zip(times, seconds["mpirun"], strict=True)]
        line = f"{name:10}{statistics.median(times):8.2f} s"
        if name != "mpirun":
            low, high = min(differences), max(differences)
            line += f"   {statistics.median(differences):+.2f} s ({low:+.2f} … {high:+.2f})"
        print(line)


def main(args: argparse.Namespace) -> None:
    sys.path.insert(0, str(ROOT))
    from tests.nodes.cluster import missing, virtual_nodes

    if reason := missing():
        print(f"not measured: {reason}")
        return
    names = list(dict.fromkeys(["mpirun", *args.starts]))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with (
        tempfile.TemporaryDirectory(prefix="nodes-", dir="/var/tmp") as folder,
        virtual_nodes(
            NUM_NODES,
            Path(folder) / "state",
            keep=list(dict.fromkeys((Path(sys.prefix), ROOT, HERE))),
            environment={**path, **VARIABLES},
        ) as cluster,
    ):
        starts = Starts(cluster, args.ranks_per_node)
        for number in range(args.rounds):
            for name in names:
                took_s = starts.measure(name, cluster.shared / f"{name}-{number}")
                seconds[name].append(took_s)
                print(f"round {number} {name:10}{took_s:8.2f} s", flush=True)
    report(seconds)
    save(
        __file__,
        seconds=seconds,
    )


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Start of a job on three virtual nodes.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--starts", nargs="+", default=list(STARTS), choices=STARTS)
    return parser.parse_args(words)


if __name__ == "__main__":
    if sys.argv[1:2] == ["step"]:
        step_main(Path(sys.argv[2]))
    else:
        main(parse(sys.argv[1:]))
