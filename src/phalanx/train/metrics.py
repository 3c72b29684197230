"""What a log says of an epoch."""

from __future__ import annotations

from phalanx.records.schema import Summary


def epoch_line(summary: Summary, epochs: int) -> str:
    """One epoch as a line of a log."""
    return (
        f"epoch {summary.epoch + 1}/{epochs}"
        f"  loss {summary.train_loss:.4f}"
        f"  validation {summary.validation_loss:.4f}"
        f"  accuracy {summary.validation_accuracy:.2%}"
        f"  {summary.images_per_s:,.0f} images/s"
        f"  communication {summary.communication_share:.1%}"
        f"  {summary.epoch_s:.2f} s"
    )
