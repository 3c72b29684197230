"""Evaluation of a model on validation or training data."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable

import torch

from phalanx.data.sources.source import LoadedBatch, Source
from phalanx.parallel.strategy import Strategy
from phalanx.records.divergence import recorded_loss
from phalanx.records.schema import EvaluationEvent, TrainingEvaluationEvent
from phalanx.train.accuracy import num_correct

EVALUATION_BATCH_SIZE = 500


def evaluate(strategy: Strategy, source: Source, epoch: int, *, began_at: float) -> EvaluationEvent:
    """Evaluate this rank's shard of the validation data; each sample is counted by one rank."""
    began = time.perf_counter()
    batches = source.validation_batches(
        rank=strategy.data_rank, num_ranks=strategy.data_size, batch_size=EVALUATION_BATCH_SIZE
    )
    samples, loss_sum, correct = _counts(strategy, batches)
    ended = time.perf_counter()
    return EvaluationEvent(
        at_s=ended - began_at,
        epoch=epoch,
        evaluation_s=ended - began,
        samples=samples,
        loss_sum=recorded_loss(loss_sum),
        correct=correct,
    )


def evaluate_on_training_data(
    strategy: Strategy, source: Source, epoch: int, num_samples: int, *, began_at: float
) -> TrainingEvaluationEvent:
    """Evaluate this rank's shard of about `num_samples` training samples, the same for every
    seed."""
    began = time.perf_counter()
    global_batch_size = EVALUATION_BATCH_SIZE * strategy.data_size
    batches = source.train_batches(
        seed=0,
        epoch=0,
        global_batch_size=min(global_batch_size, source.num_train),
        rank=strategy.data_rank,
        num_ranks=strategy.data_size,
    )
    wanted = math.ceil(min(num_samples, source.num_train) / global_batch_size)
    samples, loss_sum, correct = _counts(strategy, itertools.islice(batches, wanted))
    ended = time.perf_counter()
    return TrainingEvaluationEvent(
        at_s=ended - began_at,
        epoch=epoch,
        evaluation_s=ended - began,
        samples=samples,
        loss_sum=recorded_loss(loss_sum),
        correct=correct,
    )


@torch.no_grad()
def _counts(strategy: Strategy, batches: Iterable[LoadedBatch]) -> tuple[int, float, int | None]:
    """Return samples, sum of the losses and correct predictions that this rank counts; None where
    the loss asks for no classes."""
    samples, loss_sum, correct = 0, 0.0, 0
    if strategy.role == "worker":
        strategy.model.eval()
        for batch in batches:
            outputs, loss = strategy.predict(batch.inputs), strategy.loss
            if strategy.counts_samples and outputs is not None:
                samples += batch.num_samples
                loss_sum += loss.evaluate(outputs, batch.targets, batch.num_samples)
                if loss.counts_correct:
                    correct += num_correct(outputs, batch.targets)
        strategy.model.train()
    return samples, loss_sum, correct if strategy.loss.counts_correct else None
