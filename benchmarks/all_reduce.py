"""The shared window's all-reduce against the MPI library's, in turn, in one run.

    python benchmarks/all_reduce.py [RANKS]      # default 2; half a minute

For the gradient sizes of the three models and a few round ones: microseconds, median and quartiles
over 300 calls, buffers rewritten and the sums checked every time. Raw values, commit and machine go
to benchmarks/results/all_reduce.json.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from phalanx.comm.reducer import Method, make_reducer
from phalanx.comm.world import World
from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job
from phalanx.records.files import write_atomically
from phalanx.train.environment import describe_environment

ELEMENTS = {"1 k": 1_000, "rnn": 82_186, "mlp": 235_146, "cnn": 421_642, "4 M": 4_000_000}
METHODS: tuple[Method, ...] = ("shared", "library")
CALLS = 300
RESULTS = Path(__file__).parent / "results" / "all_reduce.json"


def rank_main(output: Path) -> None:
    world = World.create(timeout_s=60)
    times: dict[str, dict[str, list[float]]] = {}
    for label, count in ELEMENTS.items():
        reducers = {method: make_reducer(world, [count], np.float32, method) for method in METHODS}
        mine = np.empty(count, np.float32)
        times[label] = {method: [] for method in METHODS}
        for _ in range(CALLS):
            for method, reducer in reducers.items():
                mine[:] = world.rank + 1
                world.barrier()
                began = time.perf_counter()
                reducer.all_reduce([mine])
                times[label][method].append(time.perf_counter() - began)
                assert (reducer.total == world.size * (world.size + 1) / 2).all(), "a wrong sum"
        world.barrier()
        for reducer in reducers.values():
            reducer.close()
    if world.rank == 0:
        output.write_text(json.dumps(times))
    world.close()


def report(times: dict[str, dict[str, list[float]]]) -> None:
    print(f"{'':6}{'bytes':>12}{'shared µs':>26}{'library µs':>26}{'ratio':>8}")
    for label, methods in times.items():
        medians = {method: statistics.median(values) for method, values in methods.items()}
        cells = ""
        for method in METHODS:
            low, _, high = statistics.quantiles(methods[method], n=4)
            cells += f"{medians[method] * 1e6:10.1f} [{low * 1e6:.1f} {high * 1e6:.1f}]".rjust(26)
        ratio = medians["library"] / medians["shared"]
        print(f"{label:6}{4 * ELEMENTS[label]:12,}{cells}{ratio:8.2f}")


def main(ranks: int) -> None:
    mpi = find_mpi(os.environ)
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "times.json"
        program = [sys.executable, __file__, "rank", str(output)]
        command = mpi_job(mpi, ranks, program, cores=usable_cores(), environ=os.environ)
        with Job.start([command], Path(name) / "log") as job:
            if job.wait(300) != 0:
                sys.exit((Path(name) / "log").read_text())
        times = json.loads(output.read_text())
    report(times)
    document = {
        "command": f"python benchmarks/all_reduce.py {ranks}",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(str(mpi))),
        "ranks": ranks,
        "seconds": times,
    }
    write_atomically(RESULTS, json.dumps(document).encode())
    print(f"raw times: {RESULTS}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
