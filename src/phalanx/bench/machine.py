"""Measure this machine for a machine file: memory, contention of its ranks, sums in its memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from phalanx.bench.config import CollectivesConfig
from phalanx.bench.job import run_bench
from phalanx.bench.profile import memory_rates, sums_of
from phalanx.errors import RunFailedError
from phalanx.jobs.cores import usable_cores, usable_memory_bytes
from phalanx.jobs.record import this_command
from phalanx.plan.machine import Cluster
from phalanx.records.environment import describe_environment

BUSY_S = 0.6
ROUNDS = 3
START_S = 0.8
"""Seconds that a process may take to load NumPy."""
SIZES = ("64KB", "1MB", "4MB", "25MB", "64MB")
SUMS_S = 4.0
COMMENTS = {
    "name": "Written by phalanx bench machine; a line of it may be changed or left out.",
    "memory_bytes_per_s": "Bytes read and written per second by a rank, by the bytes it works on;"
    "\nall ranks at once.",
    "contention": "Time of the same computation by ranks that compute, as multiple of one alone.",
    "all_reduce": "Sums of float32 in the memory of the node, by ranks and bytes; spread: half the "
    "\ndistance of the quartiles, as a share of the median.",
    "unknown": "Add what you know: network: {bandwidth_bytes_per_s: 12.5e9, latency_s: 2e-6}.",
}


def measure_machine(
    ranks: int, folder: Path, console: Console, *, price_per_node_hour: float | None = None
) -> Cluster:
    """Return this machine as a machine file has it; records of the sums are kept in `folder`.

    ranks: most ranks of a node.
    Raises: RunFailedError when a process that computes fails, or the ranks do.
    """
    environment = describe_environment(None, cores=usable_cores())
    counts = _powers(ranks)
    console.print(f"contention of {', '.join(map(str, counts))} ranks", markup=False)
    contention = measure_contention(counts)
    sums, rates = [], dict[int, float]()
    for number in counts[1:]:
        place = folder / f"ranks-{number}"
        config = CollectivesConfig(
            ranks=number, sizes=SIZES, paths=("phalanx",), seconds=SUMS_S, output=place
        )
        run_bench(config, place, command=this_command(), console=console)
        sums += sums_of(place, number, "phalanx")
        rates = memory_rates(place)
    return Cluster(
        name=environment.hostname,
        source=f"phalanx bench machine, {datetime.now(UTC):%Y-%m-%d}, "
        f"load {os.getloadavg()[0]:.1f}",
        nodes=1,
        ranks_per_node=ranks,
        cores_per_node=environment.cores,
        processor=environment.processor,
        memory_gib_per_rank=round(usable_memory_bytes() / ranks / 2**30, 1),
        memory_bytes_per_s={size: float(f"{rate:.4g}") for size, rate in rates.items()},
        contention=contention,
        all_reduce=sums,
        price_per_node_hour=price_per_node_hour,
        unknown=["network"],
    )


def measure_contention(counts: Sequence[int]) -> dict[int, float]:
    """Return how much longer ranks compute that exchange nothing, by their number, than one alone;
    numbers take turns, and each is the median of them.

    Raises: RunFailedError for a process that fails.
    """
    found: dict[int, list[float]] = {number: [] for number in counts}
    for _ in range(ROUNDS):
        for number in counts:
            found[number].append(_turn_s(number))
    alone_s = statistics.median(found[counts[0]])
    return {
        number: round(max(1.0, statistics.median(times) / alone_s), 3)
        for number, times in found.items()
    }


def _turn_s(number: int) -> float:
    """Return the median turn of the slowest of `number` processes that compute at once."""
    words = [sys.executable, "-m", "phalanx.bench.busy_rank"]
    words += [str(time.time() + START_S), str(BUSY_S)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=one_thread)
        for _ in range(number)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RunFailedError("a process that measures contention has failed")
    return max(map(float, outputs))


def _powers(most: int) -> list[int]:
    """Return 1, 2, 4 … and `most`."""
    found = [1]
    while 2 * found[-1] < most:
        found.append(2 * found[-1])
    return sorted({*found, most})
