"""Run a program for `phalanx check`: as `jobs/run_python.py`, with other defaults.

Run as a program, `checked_program.py <program.py | -m module> <argument>...`. NumPy's and Python's
generators begin with a seed of the check's, so that it can tell who draws from them unseeded.
"""

from __future__ import annotations

import os
import random
import sys
from itertools import count

import numpy as np
import torch

from phalanx.jobs.run_python import run
from phalanx.records.watched import CheckSetup
from phalanx.run.watching import read_check_setup


def prepare(setup: CheckSetup) -> None:
    """Seed the generators that have no fixed first state, and compute as the setup wants."""
    random.seed(setup.seed)
    np.random.seed(setup.seed)
    made, default_rng = count(), np.random.default_rng

    def seeded_rng(seed: object = None) -> np.random.Generator:
        return default_rng([setup.seed, next(made)] if seed is None else seed)  # type: ignore[arg-type]

    np.random.default_rng = seeded_rng
    if setup.is_double:
        torch.set_default_dtype(torch.float64)


if __name__ == "__main__":
    own = read_check_setup(os.environ)
    assert own is not None, "phalanx check sets it"
    prepare(own)
    run(sys.argv[1:])
