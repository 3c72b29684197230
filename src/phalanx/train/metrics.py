"""What a log says of an epoch."""

from __future__ import annotations

from phalanx.records.schema import Summary
from phalanx.train.config import TrainConfig


def epoch_line(summary: Summary, config: TrainConfig) -> str:
    """One epoch as a line of a log. config: complete."""
    return (
        f"epoch {summary.epoch + 1}/{config.epochs}"
        f"  loss {_loss(summary.train_loss)}"
        f"  validation {_loss(summary.validation_loss)}"
        f"  {accuracy_words(config)} {summary.validation_accuracy:.2%}"
        f"  {summary.images_per_s:,.0f} {samples_word(config)}/s"
        f"  communication {summary.communication_share:.1%}"
        f"  {summary.epoch_s:.2f} s"
        f"{_damaged(summary)}{_skipped(summary)}"
    )


def _damaged(summary: Summary) -> str:
    if not summary.damaged:
        return ""
    return (
        f"  {summary.damaged:,} damaged {'sample' if summary.damaged == 1 else 'samples'} left out"
    )


def _loss(value: float) -> str:
    return f"{value:.4f}" if value < 1e6 else f"{value:.1e}"


def _skipped(summary: Summary) -> str:
    if not summary.skipped:
        return ""
    return f"  {summary.skipped:,} step{'s' * (summary.skipped > 1)} skipped"


def samples_word(config: TrainConfig) -> str:
    """What the samples are. A sample of text is a window of characters."""
    return "samples" if config.dataset == "text" or config.data else "images"


def accuracy_words(config: TrainConfig) -> str:
    """Of what the accuracy is a share: of images, or of the characters that come next."""
    return "characters right" if config.dataset == "text" else "accuracy"
