"""The programs of examples/ports against their originals, each started as by its user.

    python benchmarks/ports.py [NAME ...]      # all five: ten minutes on two cores

Times run from the first line that a program prints to its last, without the start of processes, the
imports and the first epoch. A round runs all cells: the original with one thread and with two, its
port in one process and on two ranks, of one thread each. Reported is the ratio to the first cell of
the same round, its median and range: of wall-clock time and, with one thread, of CPU time, which
other processes disturb less. The port also runs once on three ranks, and its lines are compared
between the numbers of ranks. Raw times, commit and machine go to runs/benchmarks/ports.json.
"""

from __future__ import annotations

import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import save

FOLDER = Path(__file__).parents[1] / "examples" / "ports"
NAMES = ("mnist", "gpt", "forces", "gan", "pinn")
ROUNDS = 3
OPTIONS = ""
"""Words for every program."""
# File, ranks and threads of each rank, by cell.
CELLS = {
    "before": ("{}_before.py", 1, 1),
    "before, 2 threads": ("{}_before.py", 1, 2),
    "port": ("{}.py", 1, 1),
    "port, 2 ranks": ("{}.py", 2, 1),
}
THREE_RANKS = ("{}.py", 3, 1)
TIMES = "times of lines: "


class TimedLines:
    """Standard output that notes when each line ends."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []

    def write(self, text: str) -> None:
        sys.__stdout__.write(text)  # type: ignore[union-attr]
        if text.endswith("\n"):
            self.times.append((time.perf_counter(), time.process_time()))

    def flush(self) -> None:
        sys.__stdout__.flush()  # type: ignore[union-attr]


def run_rank(file: str, words: list[str]) -> None:
    """Run a program in this process, and print the times of its first and last line."""
    sys.path[0], sys.argv = str(Path(file).parent), [file, *words]
    sys.stdout = lines = TimedLines()
    runpy.run_path(file, run_name="__main__")
    sys.stdout = sys.__stdout__
    if lines.times:
        (began, used_before), (ended, used) = lines.times[0], lines.times[-1]
        print(TIMES + json.dumps([ended - began, used - used_before]), flush=True)


def run(name: str, cell: tuple[str, int, int]) -> tuple[list[float], list[str]]:
    """Return the seconds on the clock and of the processor, and the lines of a program."""
    file, ranks, threads = cell
    words = [__file__, "rank", str(FOLDER / file.format(name)), *OPTIONS.split()]
    with tempfile.TemporaryDirectory() as folder:
        if ranks > 1:
            launch = ["-m", "phalanx", "launch", "-n", str(ranks), "--threads", str(threads)]
            words = [*launch, "--log-dir", f"{folder}/logs", *words]
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            capture_output=True,
            text=True,
        )
    *lines, times = done.stdout.splitlines() or [""]
    if done.returncode != 0 or not times.startswith(TIMES):
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return json.loads(times.removeprefix(TIMES)), lines


def measure(name: str) -> dict[str, Any]:
    """Return raw seconds by cell, and the lines of the port by number of ranks."""
    seconds: dict[str, list[list[float]]] = {cell: [] for cell in CELLS}
    lines = {}
    for number in range(ROUNDS):
        for cell in list(CELLS)[:: -1 if number % 2 else 1]:
            taken, lines[cell] = run(name, CELLS[cell])
            seconds[cell].append(taken)
    _, lines["port, 3 ranks"] = run(name, THREE_RANKS)
    return {"clock_s_and_processor_s": seconds, "lines": lines}


def show(name: str, found: dict[str, Any]) -> None:
    """Print the ratios to the original program."""
    seconds, lines = found["clock_s_and_processor_s"], found["lines"]
    for cell, kind, index in (
        ("port", "processor", 1),
        ("port", "clock", 0),
        ("before, 2 threads", "clock", 0),
        ("port, 2 ranks", "clock", 0),
    ):
        pairs = zip(seconds[cell], seconds["before"], strict=True)
        ratios = sorted(taken[index] / before[index] for taken, before in pairs)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{name:7} {cell:18} {kind:9} {statistics.median(ratios):5.2f}  ({spread})")
    same = [lines[cell] == lines["port"] for cell in ("port, 2 ranks", "port, 3 ranks")]
    print(f"{name:7} the same lines on 2 ranks: {same[0]}, on 3: {same[1]}", flush=True)


def main(names: list[str]) -> None:
    programs = {}
    for name in names or NAMES:
        programs[name] = {"load_average": os.getloadavg()[0], **measure(name)}
        show(name, programs[name])
    save(__file__, programs=programs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(sys.argv[2], sys.argv[3:])
    else:
        main(sys.argv[1:])
