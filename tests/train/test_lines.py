"""What the log and the live line say, for images and for text."""

from __future__ import annotations

import pytest

from phalanx.records.events import StartedEvent, StepEvent, SummaryEvent
from phalanx.train.config import TrainConfig
from phalanx.train.job import TrainingProgress
from phalanx.train.run import epoch_line

IMAGES = TrainConfig.from_options(
    dataset="digits", strategy="mpi", ranks=2, epochs=3, batch_size=100
)
TEXT = TrainConfig.from_options(
    model="gpt", dataset="text", strategy="mpi", ranks=2, epochs=3, batch_size=100
)


def started(targets_per_sample: int) -> StartedEvent:
    return StartedEvent(
        at_s=0.0,
        rank=0,
        hostname="example",
        process_id=1,
        local_rank=0,
        threads=1,
        startup_s=1.0,
        parameters=10,
        train_samples=250,
        validation_samples=3,
        targets_per_sample=targets_per_sample,
    )


def step(number: int, samples: int, loss_sum: float, epoch: int = 0) -> StepEvent:
    return StepEvent(
        at_s=0.0,
        epoch=epoch,
        step=number,
        samples=samples,
        loss_sum=loss_sum,
        data_s=0.1,
        forward_s=0.4,
        backward_s=0.6,
        communication_s=0.5,
        optimizer_s=0.4,
    )


def summary(epoch: int) -> SummaryEvent:
    return SummaryEvent(
        at_s=0.0,
        epoch=epoch,
        epoch_s=2.5,
        trained_s=2.5,
        images_per_s=1234.4,
        communication_share=0.123,
        train_loss=0.51234,
        train_accuracy=0.8,
        validation_loss=0.61234,
        validation_accuracy=0.79126,
    )


def test_the_line_of_an_epoch() -> None:
    assert epoch_line(summary(1), IMAGES) == (
        "epoch 2/3  loss 0.5123  validation 0.6123  accuracy 79.13%  1,234 images/s"
        "  communication 12.3%  2.50 s"
    )
    assert epoch_line(summary(1), TEXT) == (
        "epoch 2/3  loss 0.5123  validation 0.6123  characters right 79.13%  1,234 samples/s"
        "  communication 12.3%  2.50 s"
    )


def test_the_live_line_of_images() -> None:
    state = TrainingProgress(IMAGES)
    assert state.text() == "starting …"
    assert state.take([started(1)]) == []
    assert state.text() == "first batch …"
    state.take([step(0, 50, 100.0), step(1, 50, 50.0)])
    assert state.text() == (
        "epoch 1/3 ████████████████░░░░  80%  loss 1.5000  50 images/s  communication 25.0%"
    )
    assert state.take([step(2, 25, 0.0), summary(0), summary(0)]) == [
        epoch_line(summary(0), IMAGES)
    ]
    assert " 100%  loss 1.2000  accuracy 79.13%  42 images/s" in state.text()
    state.take([step(3, 50, 25.0, epoch=1)])
    assert state.text().startswith("epoch 2/3 ████████░░░░░░░░░░░░  40%  loss 0.5000  accuracy")


def test_the_loss_of_text_is_that_of_a_character() -> None:
    state = TrainingProgress(TEXT)
    state.take([started(64), step(0, 50, 50 * 64 * 2.5), summary(0)])
    assert "  loss 2.5000  characters right 79.13%  50 samples/s  communication" in state.text()


def test_a_rank_that_sees_no_loss_says_nothing_of_it() -> None:
    """The first stage of a pipeline; and of ranks that share each sample none is counted twice."""
    config = TrainConfig.from_options(
        dataset="digits", strategy="pipeline", ranks=2, batch_size=100
    )
    state = TrainingProgress(config)
    state.take([started(1), step(0, 0, 0.0)])
    assert state.text() == "epoch 1/5 ████████░░░░░░░░░░░░  40%  50 images/s  communication 25.0%"
    whole = TrainingProgress(TrainConfig.from_options(strategy="tensor", ranks=2, batch_size=100))
    whole.take([started(1), step(0, 100, 100.0)])
    assert " 40%  loss 1.0000  50 images/s" in whole.text()


@pytest.mark.parametrize(
    "options",
    [{"strategy": "zero"}, {"strategy": "tensor"}, {"mesh": "dp=2,tp=1"}],
    ids=str,
)
def test_messages_within_the_passes_are_not_called_communication(options: dict[str, str]) -> None:
    config = TrainConfig.from_options(ranks=2, epochs=3, batch_size=100, **options)  # type: ignore[arg-type]
    assert "  communication \N{EN DASH}  2.50 s" in epoch_line(summary(1), config)
    state = TrainingProgress(config)
    state.take([started(1), step(0, 50, 100.0)])
    assert state.text().endswith("  communication \N{EN DASH}")
