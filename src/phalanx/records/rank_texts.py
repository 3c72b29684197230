"""Lines about ranks that are lost or slow."""

from __future__ import annotations

import re
from collections.abc import Sequence

from phalanx.records.events import RebalancedEvent, RecoveredEvent, ReplacedEvent, SlowRankEvent

LOSS_LINE = re.compile(rb"^ranks? [\d, ]+(?:a spare, |spares, )?died: .*\bcontinued after ", re.M)
"""Line of `recovered_text` or `replaced_text`, in what a rank prints."""


def recovered_text(event: RecoveredEvent, left: int, *, are_spares: bool = False) -> str:
    """Return a loss of ranks in one line. left: number of ranks that went on. are_spares: whether
    those that died waited."""
    who = _ranks(event.lost) + (f", {_spares(event.lost)}," if are_spares else "")
    return f"{who} died: {_went_on(left, event.recovery_s)}"


def replaced_text(event: ReplacedEvent, left: int) -> str:
    """Return in one line which spares have come for whom. left: number of ranks that went on."""
    who = f"{_ranks(event.spares)}, {_spares(event.spares)},"
    if not event.lost:
        return f"{who} joined: {_went_on(left, event.seconds)}"
    many, few = len(event.lost), len(event.spares)
    places = "its place" if many == 1 else "their places"
    if few < many:
        places = f"{few} of {places}"
    return f"{_ranks(event.lost)} died: {who} took {places}: {_went_on(left, event.seconds)}"


def lost_text(lost: Sequence[int]) -> str:
    """Say which ranks died in a run that has come to its end."""
    return f"{_ranks(lost)} died; the other ranks continued to the end"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _spares(ranks: Sequence[int]) -> str:
    return "a spare" if len(ranks) == 1 else "spares"


def _went_on(left: int, seconds: float) -> str:
    return f"{left} rank{'s' * (left > 1)} continued after {seconds * 1e3:.0f} ms"


def slow_rank_text(event: SlowRankEvent) -> str:
    """Say which rank is slow, in which phase."""
    times = f"{event.ratio:.1f} × the median for {event.steps} steps"
    return f"{event.name}: {event.phase} {times}"


def rebalanced_text(event: RebalancedEvent) -> str:
    """Say how micro-batches are divided from now on."""
    before, now = (", ".join(map(str, each)) for each in (event.former, event.micro_batches))
    return f"step {event.step}: micro-batches of the ranks: {now} (before: {before})"
