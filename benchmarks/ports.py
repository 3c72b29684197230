"""The programs of examples/ports beside what they were, each as its user starts it.

    python benchmarks/ports.py [NAME ...]      # all five: a quarter of an hour on two cores

Timed is from the first line that a program prints to its last: without the start of processes, the
imports and the first epoch. Rounds of all cells in turn: the program as it was, with one thread and
with two, and its port alone and on two ranks of one thread each. Reported is the ratio to the first
cell of the same round, its median and range; on three ranks the port is run once, and the lines it
prints are compared over the numbers of ranks. Raw times, commit and machine go to
benchmarks/results/ports.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from phalanx.jobs.record import describe_environment
from phalanx.launch.installation import find_mpi
from phalanx.records.files import write_atomically

FOLDER = Path(__file__).parents[1] / "examples" / "ports"
RESULTS = Path(__file__).parent / "results" / "ports.json"
NAMES = ("mnist", "gpt", "forces", "gan", "pinn")
ROUNDS = 5
OPTIONS = ""
"""Words for every program."""
# Of a cell: the file, ranks, threads of each.
CELLS = {
    "before": ("{}_before.py", 1, 1),
    "before, 2 threads": ("{}_before.py", 1, 2),
    "port": ("{}.py", 1, 1),
    "port, 2 ranks": ("{}.py", 2, 1),
}
THREE_RANKS = ("{}.py", 3, 1)


def run(name: str, cell: tuple[str, int, int]) -> tuple[float, list[str]]:
    """Return the seconds between the first and the last line of a program, and its lines."""
    file, ranks, threads = cell
    words = [str(FOLDER / file.format(name)), *OPTIONS.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        if ranks > 1:
            logs = f"{folder}/logs"
            launch = ["-m", "phalanx", "launch", "-n", str(ranks), "--threads", str(threads)]
            words = [*launch, "--log-dir", logs, *words]
        lines, times = [], []
        with subprocess.Popen(
            [sys.executable, "-u", *words],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                times.append(time.perf_counter())
    if process.returncode != 0 or len(lines) < 2:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}: {lines}")
    return times[-1] - times[0], lines


def measure(name: str) -> dict[str, Any]:
    """Return raw seconds by cell, and the lines of the port by number of ranks."""
    seconds: dict[str, list[float]] = {cell: [] for cell in CELLS}
    lines = {}
    for number in range(ROUNDS):
        for cell in list(CELLS)[:: -1 if number % 2 else 1]:
            taken, lines[cell] = run(name, CELLS[cell])
            seconds[cell].append(taken)
    _, lines["port, 3 ranks"] = run(name, THREE_RANKS)
    return {"seconds": seconds, "lines": lines}


def show(name: str, found: dict[str, Any]) -> None:
    seconds, lines = found["seconds"], found["lines"]
    print(f"{name}: {statistics.median(seconds['before']):.2f} s as it was")
    for cell in list(CELLS)[1:]:
        pairs = zip(seconds[cell], seconds["before"], strict=True)
        ratios = sorted(taken / before for taken, before in pairs)
        middle = statistics.median(ratios)
        print(f"  {cell:18} {middle:.2f} times as long ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    same = [lines[cell] == lines["port"] for cell in ("port, 2 ranks", "port, 3 ranks")]
    print(f"  the same lines on 2 ranks: {same[0]}, on 3: {same[1]}", flush=True)


def main(names: list[str]) -> None:
    document: dict[str, Any] = {
        "command": f"python benchmarks/ports.py {' '.join(names)}".strip(),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(describe_environment(str(find_mpi(os.environ)))),
        "programs": {},
    }
    for name in names or NAMES:
        document["programs"][name] = measure(name)
        show(name, document["programs"][name])
    document["load_at_end"] = os.getloadavg()[0]
    write_atomically(RESULTS, json.dumps(document, indent=1).encode())
    print(f"raw times: {RESULTS}")


if __name__ == "__main__":
    main(sys.argv[1:])
