"""Log line of an epoch."""

from __future__ import annotations

from phalanx.records.divergence import loss_text
from phalanx.records.events import SummaryEvent
from phalanx.records.waiting import communicates_within_passes
from phalanx.train.config import TrainConfig


def epoch_line(summary: SummaryEvent, config: TrainConfig) -> str:
    """One epoch as a line of a log. config: complete."""
    return (
        f"epoch {summary.epoch + 1}/{config.epochs}"
        f"  loss {loss_text(summary.train_loss)}"
        f"  validation {loss_text(summary.validation_loss or 0.0)}"
        f"{accuracy_text(summary.validation_accuracy, config)}"
        f"  {summary.images_per_s:,.0f} {samples_word(config)}/s"
        f"{communication_words(config, summary.communication_share)}"
        f"  {summary.epoch_s:.2f} s"
        f"{_damaged(summary)}{_skipped(summary)}"
    )


def communication_words(config: TrainConfig, share: float) -> str:
    """A dash where messages go within the passes, and are timed as these."""
    within = not config.bitwise and communicates_within_passes(config.strategy, config.zero_stage)
    return "  communication " + ("\N{EN DASH}" if within else f"{share:.1%}")


def _damaged(summary: SummaryEvent) -> str:
    if not summary.damaged:
        return ""
    return (
        f"  {summary.damaged:,} damaged {'sample' if summary.damaged == 1 else 'samples'} left out"
    )


def _skipped(summary: SummaryEvent) -> str:
    if not summary.skipped:
        return ""
    return f"  {summary.skipped:,} step{'s' * (summary.skipped > 1)} skipped"


def samples_word(config: TrainConfig) -> str:
    """Return the word for samples: images, or samples (of text, windows of characters)."""
    return "samples" if config.dataset == "text" or config.data else "images"


def accuracy_text(accuracy: float | None, config: TrainConfig) -> str:
    """Return the accuracy with its word; nothing where the loss asks for no classes."""
    return "" if accuracy is None else f"  {accuracy_words(config)} {accuracy:.2%}"


def accuracy_words(config: TrainConfig) -> str:
    """Return the word for the accuracy: of images, or of predicted next characters."""
    return "characters right" if config.dataset == "text" else "accuracy"
