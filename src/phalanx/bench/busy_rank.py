"""`python -m phalanx.bench.busy_rank START_S SECONDS`: compute, and print the time of a turn.

START_S: on the clock of `time.time`, at which all processes of a measurement begin.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

SIDE = 256
"""Rows of the matrices that are multiplied: they fit a core's own cache."""
VALUES = 2**20
"""Values of the vectors that are added: they do not."""


def turns(seconds: float) -> list[float]:
    """Return the seconds of each turn: a product of matrices, and a sum of long vectors, which take
    about as long as each other."""
    generator = np.random.default_rng(0)
    matrix = generator.random((SIDE, SIDE), dtype=np.float32)
    left, right = (generator.random(VALUES, dtype=np.float32) for _ in range(2))
    product, total, found = np.empty_like(matrix), np.empty_like(left), []
    until_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < until_s:
        np.matmul(matrix, matrix, out=product)
        np.add(left, right, out=total)
        found.append(time.perf_counter() - began_s)
    return found


if __name__ == "__main__":
    time.sleep(max(0.0, float(sys.argv[1]) - time.time()))
    print(statistics.median(turns(float(sys.argv[2]))))
