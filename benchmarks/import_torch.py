"""Time that Phalanx adds to `import torch`; the aim is at most 10 ms.

    python benchmarks/import_torch.py [--rounds 20]

Programs import torch with the entry point of Phalanx or with it hidden, in turns. Measured is CPU
time, which other processes disturb less than wall-clock time. On a busy machine imports differ by
more than what is added, so the time inside the entry point is measured as well.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from harness import save

AIM_S = 0.010

PROGRAM = """
import importlib.metadata, sys, time

class Timed:
    def __init__(self, point):
        self.name, self.point = point.name, point
    def load(self):
        def call():
            global inside
            began = time.process_time()
            self.point.load()()
            inside = time.process_time() - began
        return call

inside = 0.0
found = importlib.metadata.entry_points
def entry_points(**wanted):
    points = [Timed(p) if p.name == "phalanx" else p for p in found(**wanted)]
    return [p for p in points if p.name != "phalanx"] if sys.argv[1] == "without" else points
importlib.metadata.entry_points = entry_points
began = time.process_time()
import torch
took = time.process_time() - began
assert hasattr(torch.distributed.distributed_c10d, "ProcessGroupMPI") is (sys.argv[1] == "with")
assert not any(name.startswith("mpi4py") for name in sys.modules)
print(took, inside)
"""


def import_seconds(way: str) -> tuple[float, float]:
    """Return seconds of the full import, and of the entry point alone."""
    words = [sys.executable, "-c", PROGRAM, way]
    output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    whole, inside = output.split()
    return float(whole), float(inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    times_s: dict[str, list[float]] = {"with": [], "without": []}
    inside_s: list[float] = []
    for way in times_s:
        import_seconds(way)  # warms the file cache
    for number in range(arguments.rounds):
        for way in sorted(times_s, reverse=bool(number % 2)):
            whole, inside = import_seconds(way)
            times_s[way].append(whole)
            if way == "with":
                inside_s.append(inside)
    medians = {way: statistics.median(values) for way, values in times_s.items()}
    for way, median_s in medians.items():
        spread = f"{min(times_s[way]) * 1e3:.0f} to {max(times_s[way]) * 1e3:.0f}"
        print(f"import torch {way:8s} {median_s * 1e3:7.1f} ms  ({spread})")
    added_s = statistics.median(inside_s)
    print(f"of which in the entry point {added_s * 1e3:.1f} ms  (aim: at most {AIM_S * 1e3:g})")
    save(
        __file__,
        median_s=medians,
        inside_median_s=added_s,
        times_s=times_s,
        inside_s=inside_s,
    )


if __name__ == "__main__":
    main()
