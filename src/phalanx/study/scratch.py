"""The second part of the parallelism study: `examples/scratch` on more and more workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import phalanx
from phalanx.study.epoch_lines import ProgramConfig
from phalanx.study.parallelism import ParallelismConfig
from phalanx.study.planned import StudyPlan
from phalanx.study.programs import ProgramTraining

PROGRAM = Path("examples", "scratch", "train.py")
BATCH_SIZE = 128
QUICK_SAMPLES, FULL_SAMPLES = 256, 1_280
VALIDATION_SAMPLES = 500
QUICK_EPOCHS, FULL_EPOCHS = 2, 3
MOST_WORKERS_OF_EACH_WIDTH = 8
"""Limit of a quick study; beyond, the narrowest network stands for all."""

ScratchScheme = Literal["alone", "server", "library", "ring"]


def find_program() -> Path | None:
    """Return the program in the checkout that Phalanx runs from, or below the working folder."""
    checkout = Path(phalanx.__file__).parents[2]
    return next((root / PROGRAM for root in (checkout, Path()) if (root / PROGRAM).exists()), None)


def plan_scratch(study: ParallelismConfig) -> StudyPlan:
    """Return the runs from scratch: one process, then more workers, each scheme and width."""
    runs: list[ProgramTraining] = []
    left_out: dict[str, str] = {}
    program = find_program()
    for scheme, hidden, workers in scratch_layouts(study):
        ranks = workers + 1 if scheme == "server" else workers
        name = f"scratch-{scheme}-{ranks}-h{hidden}"
        if program is None:
            left_out[name] = f"there is no {PROGRAM} here: start in a checkout of Phalanx"
        elif workers > BATCH_SIZE:
            left_out[name] = f"a batch of {BATCH_SIZE} cannot be split over {workers} workers"
        else:
            words = (str(program), *program_options(study, scheme, hidden))
            config = ProgramConfig(
                words=words,
                strategy="sequential" if scheme == "alone" else scheme,
                ranks=ranks,
                threads=1,
                seed=0,
                epoch_pattern=None,
            )
            runs.append(ProgramTraining(name=name, config=config))
    return StudyPlan(runs=tuple(runs), left_out=left_out)


def program_options(study: ParallelismConfig, scheme: ScratchScheme, hidden: int) -> Iterator[str]:
    """Yield the words after the program."""
    options = {
        "scheme": scheme,
        "hidden": hidden,
        "batch-size": BATCH_SIZE,
        "epochs": FULL_EPOCHS if study.full else QUICK_EPOCHS,
        "train-samples": FULL_SAMPLES if study.full else QUICK_SAMPLES,
        "validation-samples": VALIDATION_SAMPLES,
        "dataset": "digits",
        "timeout-s": study.timeout_s,
    }
    for name, value in options.items():
        yield from (f"--{name}", f"{value}")


def scratch_layouts(study: ParallelismConfig) -> Iterator[tuple[ScratchScheme, int, int]]:
    """(scheme, hidden units, workers): those that are compared one after the other."""
    for workers in sorted(study.workers):
        for hidden in study.hidden:
            narrowest = hidden == min(study.hidden)
            if workers > MOST_WORKERS_OF_EACH_WIDTH and not (study.full or narrowest):
                continue
            if workers == 1:
                yield "alone", hidden, 1
            schemes: tuple[ScratchScheme, ...] = ("server", "library", "ring")
            # One worker without servers equals the single process.
            yield from ((s, hidden, workers) for s in schemes if workers > 1 or s == "server")
