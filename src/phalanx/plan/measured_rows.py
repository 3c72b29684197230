"""Recorded runs of the target, which a plan is corrected by. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.errors import UserError
from phalanx.plan.profile import FEWEST_STEPS, WARM_UP, ProgramProfile
from phalanx.records.events import StepEvent
from phalanx.records.files import rank_file, read_events, read_run


class MeasuredRow(NamedTuple):
    """A run on ranks of the target: seconds of its median step."""

    ranks: int
    step_s: float


def read_rows(folders: Sequence[Path], profile: ProgramProfile, strategy: str) -> list[MeasuredRow]:
    """Return the rows of recorded runs of the strategy that is planned, or of one process.

    Raises: UserError for a run of another model, batch, strategy or commit, by name.
    """
    return [_read_row(folder, profile, strategy) for folder in folders]


def _read_row(folder: Path, profile: ProgramProfile, strategy: str) -> MeasuredRow:
    run = read_run(folder)
    setting, commit = run.setting, run.environment.commit
    differences = {
        "model": (setting.model, profile.model),
        "global batch": (setting.global_batch_size, profile.global_batch),
        "commit of Phalanx": (commit or "unknown", profile.commit or commit or "unknown"),
    }
    for name, (theirs, ours) in differences.items():
        if theirs != ours:
            raise UserError(
                f"--with {folder}: its {name} is {theirs}, that of the profile {ours}: "
                "name a run of the same program"
            )
    if setting.strategy not in (strategy, "sequential"):
        raise UserError(
            f"--with {folder}: a run by --strategy {setting.strategy}; the plan is of {strategy}"
        )
    return MeasuredRow(setting.ranks, median_step_s(folder, setting.ranks))


def median_step_s(folder: Path, ranks: int) -> float:
    """Return the median step of a run, each as long as that of its slowest rank.

    Raises: UserError for a run of too few steps.
    """
    by_rank: list[list[float]] = []
    for rank in range(ranks):
        events = read_events(rank_file(folder, rank))
        steps = [event for event in events if isinstance(event, StepEvent)]
        pairs = itertools.pairwise(steps)
        by_rank.append([b.at_s - a.at_s for a, b in pairs if a.epoch == b.epoch])
    slowest: list[float] = [max(each) for each in zip(*by_rank, strict=False)]
    if len(slowest) < FEWEST_STEPS:
        raise UserError(
            f"{folder} has records of {len(slowest)} steps of all ranks, and {FEWEST_STEPS} are "
            "needed: train for longer"
        )
    return statistics.median(slowest[int(WARM_UP * len(slowest)) :])
