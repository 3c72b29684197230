"""Strategies whose exposed communication time is measured, and those where it is not."""

from __future__ import annotations

WITHIN_PASSES_FROM_STAGE = 2
"""ZeRO gathers parameters and scatters gradients within the passes from this stage on."""


def communicates_within_passes(strategy: str, zero_stage: object) -> bool:
    """Return whether most messages are sent within the forward and backward passes.

    They are timed as these passes, so the communication time of such a step leaves them out.
    """
    if strategy == "zero":
        return int(str(zero_stage)) >= WITHIN_PASSES_FROM_STAGE
    return strategy in ("tensor", "mesh")
