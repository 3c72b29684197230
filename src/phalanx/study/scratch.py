"""The second part of the parallelism study: the network from scratch on more and more workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from phalanx.errors import UserError
from phalanx.scratch.config import SchemeName, ScratchConfig, complete
from phalanx.scratch.job import run_scratch
from phalanx.study.parallelism import ParallelismConfig, StudyPlan
from phalanx.study.planned import PlannedRun, own_command

BATCH_SIZE = 128
QUICK_SAMPLES, FULL_SAMPLES = 256, 1_280
VALIDATION_SAMPLES = 500
QUICK_EPOCHS, FULL_EPOCHS = 2, 3
MOST_WORKERS_OF_EACH_WIDTH = 8
"""Of a quick study; beyond, the narrowest network stands for all."""


@dataclass(frozen=True, kw_only=True)
class ScratchRun(PlannedRun):
    """`phalanx scratch`."""

    config: ScratchConfig

    def check(self) -> None:
        complete(self.config)

    def make(self, folder: Path, *, study: str, console: Console, label: str) -> None:
        config, command = complete(self.config), own_command("scratch", self.config)
        run_scratch(config, folder, study=study, command=command, console=console, label=label)


def plan_scratch(study: ParallelismConfig) -> StudyPlan:
    """Return the runs from scratch: one process, then more workers, each scheme and width."""
    runs: list[ScratchRun] = []
    left_out: dict[str, str] = {}
    for scheme, hidden, workers in scratch_layouts(study):
        ranks = workers + 1 if scheme == "server" else workers
        name = f"scratch-{scheme}-{ranks}-h{hidden}"
        config = ScratchConfig(
            scheme=scheme,
            ranks=ranks,
            hidden=(hidden,),
            batch_size=BATCH_SIZE,
            epochs=FULL_EPOCHS if study.full else QUICK_EPOCHS,
            train_samples=FULL_SAMPLES if study.full else QUICK_SAMPLES,
            validation_samples=VALIDATION_SAMPLES,
            dataset="digits",
            timeout_s=study.timeout_s,
        )
        try:
            complete(config)
        except UserError as error:
            left_out[name] = str(error).splitlines()[0]
            continue
        runs.append(ScratchRun(name=name, config=config))
    return StudyPlan(runs=tuple(runs), left_out=left_out)


def scratch_layouts(study: ParallelismConfig) -> Iterator[tuple[SchemeName, int, int]]:
    """(scheme, hidden units, workers): those that are compared one after the other."""
    for workers in sorted(study.workers):
        for hidden in study.hidden:
            narrowest = hidden == min(study.hidden)
            if workers > MOST_WORKERS_OF_EACH_WIDTH and not (study.full or narrowest):
                continue
            if workers == 1:
                yield "alone", hidden, 1
            schemes: tuple[SchemeName, ...] = ("server", "library", "ring")
            # One worker without servers equals the single process.
            yield from ((s, hidden, workers) for s in schemes if workers > 1 or s == "server")
