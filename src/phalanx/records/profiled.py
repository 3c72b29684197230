"""Measurements that `phalanx plan` asks a process of one rank for, beside its steps."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

PROFILE_PLAN = "PHALANX_PROFILE_PLAN"
"""A `ProfilePlan` as JSON, in the environment of the process."""


class ProfilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A measured run."""

    costs: str | None = None
    """File for the costs of its model part by part; None: these are not measured."""
    steps: int | None = None
    """Steps of a program, with which it ends, and writes nothing of its own; None: its options
    stay as they are."""
    batch_size: int | None = None
    """Samples of its steps; None: as it has them."""
    checkpoints: str | None = None
    """Folder for one checkpoint, if it writes some; None: it writes none."""


def profile_plan_of(environ: Mapping[str, str]) -> ProfilePlan | None:
    """Return what this process measures; None: nothing."""
    text = environ.get(PROFILE_PLAN)
    return None if text is None else msgspec.json.decode(text, type=ProfilePlan)
