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
from phalanx.records.watched import CheckPlan
from phalanx.run.watching import plan_of


def prepare(plan: CheckPlan) -> None:
    """Seed the generators that have no fixed first state, and compute as the plan wants."""
    random.seed(plan.seed)
    np.random.seed(plan.seed)
    made, default_rng = count(), np.random.default_rng

    def seeded_rng(seed: object = None) -> np.random.Generator:
        return default_rng([plan.seed, next(made)] if seed is None else seed)  # type: ignore[arg-type]

    np.random.default_rng = seeded_rng
    if plan.is_double:
        torch.set_default_dtype(torch.float64)


if __name__ == "__main__":
    own = plan_of(os.environ)
    assert own is not None, "phalanx check sets it"
    prepare(own)
    run(sys.argv[1:])
