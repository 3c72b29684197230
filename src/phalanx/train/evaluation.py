"""Evaluation of a model on validation or training data."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable

import torch

from phalanx.comm.layout import share_of
from phalanx.data.sources.source import LoadedBatch, Source
from phalanx.parallel.strategy import Strategy
from phalanx.records.divergence import recorded_loss
from phalanx.records.events import EvaluationEvent, TrainingEvaluationEvent
from phalanx.run.exact_sum import ExactSum
from phalanx.train.accuracy import num_correct

EVALUATION_BATCH_SIZE = 500


def evaluate(
    strategy: Strategy, source: Source, epoch: int, *, began_at: float, losses: ExactSum
) -> EvaluationEvent:
    """Evaluate this rank's shard of the validation data; each sample is counted by one rank.

    losses: takes the sums of the losses of batches.
    """
    began = time.perf_counter()
    blocks, number = blocks_of(strategy)
    batches = itertools.chain.from_iterable(
        source.validation_batches(rank=block, num_ranks=number, batch_size=EVALUATION_BATCH_SIZE)
        for block in blocks
    )
    samples, loss_sum, correct = _counts(strategy, batches, losses)
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
    blocks, number = blocks_of(strategy)
    global_batch_size = EVALUATION_BATCH_SIZE * number
    wanted = math.ceil(min(num_samples, source.num_train) / global_batch_size)
    batches = itertools.chain.from_iterable(
        itertools.islice(
            source.train_batches(
                seed=0,
                epoch=0,
                global_batch_size=min(global_batch_size, source.num_train),
                rank=block,
                num_ranks=number,
            ),
            wanted,
        )
        for block in blocks
    )
    samples, loss_sum, correct = _counts(strategy, batches, ExactSum())
    ended = time.perf_counter()
    return TrainingEvaluationEvent(
        at_s=ended - began_at,
        epoch=epoch,
        evaluation_s=ended - began,
        samples=samples,
        loss_sum=recorded_loss(loss_sum),
        correct=correct,
    )


def blocks_of(strategy: Strategy) -> tuple[range, int]:
    """Return the blocks of samples that this rank evaluates, and how many there are in all: one a
    rank, or a fixed number."""
    if (number := strategy.num_blocks) is not None:
        return share_of(strategy.data_rank, strategy.data_size, number), number
    return range(strategy.data_rank, strategy.data_rank + 1), strategy.data_size


@torch.no_grad()
def _counts(
    strategy: Strategy, batches: Iterable[LoadedBatch], losses: ExactSum
) -> tuple[int, float, int | None]:
    """Return samples, sum of the losses and correct predictions that this rank counts; None where
    the loss asks for no classes. losses: takes the losses of batches."""
    samples, loss_sum, correct = 0, 0.0, 0
    if strategy.role == "worker":
        strategy.model.eval()
        for batch in batches:
            outputs, loss = strategy.predict(batch.inputs), strategy.loss
            if strategy.counts_samples and outputs is not None:
                samples += batch.num_samples
                batch_loss = loss.evaluate(outputs, batch.targets, batch.num_samples)
                loss_sum += batch_loss
                losses.add([batch_loss])
                if loss.counts_correct:
                    correct += num_correct(outputs, batch.targets)
        strategy.model.train()
    return samples, loss_sum, correct if strategy.loss.counts_correct else None
