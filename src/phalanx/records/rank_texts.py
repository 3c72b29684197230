"""Lines about ranks that are lost or slow."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.schema import RebalancedEvent, RecoveredEvent, SlowRankEvent


def recovered_text(event: RecoveredEvent, left: int) -> str:
    """Return a loss of ranks in one line. left: number of ranks that went on."""
    went_on = f"{left} rank{'s' * (left > 1)} went on after {event.recovery_s * 1e3:.0f} ms"
    return f"{_ranks(event.lost)} died: {went_on}"


def lost_text(lost: Sequence[int]) -> str:
    """Say which ranks died in a run that has come to its end."""
    return f"{_ranks(lost)} died, and the others went on to the end"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def slow_rank_text(event: SlowRankEvent) -> str:
    """Say which rank is slow, in which phase."""
    times = f"{event.ratio:.1f} × the median for {event.steps} steps"
    return f"{event.name}: {event.phase} {times}"


def rebalanced_text(event: RebalancedEvent) -> str:
    """Say how micro-batches are divided from now on."""
    before, now = (", ".join(map(str, each)) for each in (event.former, event.micro_batches))
    return f"step {event.step}: micro-batches of the ranks: {now} (before: {before})"
