"""All-reduce on messages, every algorithm against the naive one, in turn, in one run.

    python benchmarks/message_algorithms.py [RANKS …]      # default 2 3 4; two minutes

    naive     rank 0 gathers everything, reduces it and sends it to one rank after the other
    tree      up and down a binomial tree, in segments
    ring      around a ring, in segments
    halving   recursive halving and doubling
    direct    every rank reduces its share and hands it out
    library   the MPI library's own, whichever that is

Microseconds of a call, from the first rank's beginning to the last one's end: medians over calls on
buffers that are rewritten before and checked after. Short calls are timed ten together. The point
from which on an algorithm is faster than the naive one is the smallest size such that it is so
there and at all larger ones. Raw values, commit and machine go to
benchmarks/results/message_algorithms.json.
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

from phalanx.comm.buffer import Buffer
from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.world import World
from phalanx.jobs.record import describe_environment
from phalanx.launch.command import mpi_job
from phalanx.launch.cores import usable_cores
from phalanx.launch.installation import find_mpi
from phalanx.launch.job import Job
from phalanx.records.files import write_atomically

ALGORITHMS: tuple[AlgorithmOption, ...] = ("naive", "tree", "ring", "halving", "direct", "library")
SIZES = [4 * 4**exponent for exponent in range(12)]  # 4 B … 16 MB
SHORT_BYTES, SHORT_CALLS = 64 * 1024, 10
REPEATS, REPEATS_OF_LONG, LONG_BYTES = 40, 15, 4 * 2**20
RESULTS = Path(__file__).parent / "results" / "message_algorithms.json"

Seconds = dict[str, dict[int, list[float]]]  # by algorithm, by bytes


def values(rank: int, count: int) -> np.ndarray:
    """Whole numbers, whose sums are exact in every order."""
    return (np.arange(count) % 61 + rank).astype(np.float32)


def timed(world: World, buffers: list[Buffer], algorithm: AlgorithmOption) -> float:
    """Seconds of a call, from the first rank's beginning to the last one's end."""
    world.barrier()
    began = time.perf_counter()  # of one clock for all ranks of a machine
    for buffer in buffers:
        world.group.all_reduce(buffer, algorithm=algorithm)
    ended = time.perf_counter()
    times = world.gather(np.array([began, ended]))
    return 0.0 if times is None else float(times[:, 1].max() - times[:, 0].min()) / len(buffers)


def measured(world: World, num_bytes: int) -> dict[str, list[float]]:
    """The times of each algorithm at one size, on rank 0."""
    count = num_bytes // 4
    given = values(world.rank, count)
    truth = world.size * values(0, count) + sum(range(world.size))
    arrays = [given.copy() for _ in range(SHORT_CALLS if num_bytes <= SHORT_BYTES else 1)]
    buffers = [Buffer.of(array) for array in arrays]
    seconds: dict[str, list[float]] = {algorithm: [] for algorithm in ALGORITHMS}
    warm_up = 3
    repeats = warm_up + (REPEATS if num_bytes < LONG_BYTES else REPEATS_OF_LONG)
    for repeat in range(repeats):
        for algorithm in ALGORITHMS:
            for array in arrays:
                array[:] = given
            took_s = timed(world, buffers, algorithm)
            for array in arrays:
                assert np.array_equal(array, truth), f"{algorithm} of {num_bytes} bytes is wrong"
            if repeat >= warm_up:
                seconds[algorithm].append(took_s)
    return seconds


def rank_main(output: Path) -> None:
    world = World.create(timeout_s=120)
    seconds: Seconds = {algorithm: {} for algorithm in ALGORITHMS}
    for num_bytes in SIZES:
        for algorithm, times in measured(world, num_bytes).items():
            seconds[algorithm][num_bytes] = times
    if world.rank == 0:
        output.write_text(json.dumps(seconds))
    world.close()


def crossing(medians: dict[int, float], naive: dict[int, float]) -> int | None:
    """The size from which on `medians` are below those of naive; None where there is none."""
    start = None
    for num_bytes in sorted(naive, reverse=True):
        if medians[num_bytes] >= naive[num_bytes]:
            return start
        start = num_bytes
    return start


def report(ranks: int, seconds: Seconds) -> dict[str, int | None]:
    """Print the medians, and give the crossing point of each algorithm."""
    medians = {
        name: {int(size): statistics.median(times) for size, times in by_size.items()}
        for name, by_size in seconds.items()
    }
    print(f"\n{ranks} ranks, µs" + "".join(f"{name:>12}" for name in medians))
    for num_bytes in SIZES:
        cells = "".join(f"{1e6 * by_size[num_bytes]:12.1f}" for by_size in medians.values())
        print(f"{size_text(num_bytes):>11}{cells}")
    crossings = {
        name: crossing(by_size, medians["naive"])
        for name, by_size in medians.items()
        if name != "naive"
    }
    for name, num_bytes in crossings.items():
        where = "nowhere" if num_bytes is None else f"from {size_text(num_bytes)} on"
        print(f"{name} is faster than naive {where}")
    return crossings


def size_text(num_bytes: int) -> str:
    for unit in ("B", "KB", "MB"):
        if num_bytes < 1024:
            return f"{num_bytes} {unit}"
        num_bytes //= 1024
    return f"{num_bytes} GB"


def run(ranks: int) -> Seconds:
    mpi = find_mpi(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times.json"
        program = [sys.executable, __file__, "rank", str(output)]
        command = mpi_job(mpi, ranks, program, cores=usable_cores(), environ=os.environ)
        with Job.start([command], Path(folder) / "log") as job:
            if job.wait(900) != 0:
                sys.exit((Path(folder) / "log").read_text())
        found: Seconds = json.loads(output.read_text())
    return found


def main(all_ranks: list[int]) -> None:
    seconds = {ranks: run(ranks) for ranks in all_ranks}
    crossings = {ranks: report(ranks, found) for ranks, found in seconds.items()}
    words = " ".join(str(ranks) for ranks in all_ranks)
    document = {
        "command": f"python benchmarks/message_algorithms.py {words}",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(str(find_mpi(os.environ)))),
        "faster_than_naive_from_bytes": crossings,
        "seconds": seconds,
    }
    write_atomically(RESULTS, json.dumps(document).encode())
    print(f"\nraw times: {RESULTS}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        rank_main(Path(sys.argv[2]))
    else:
        main([int(word) for word in sys.argv[1:]] or [2, 3, 4])
