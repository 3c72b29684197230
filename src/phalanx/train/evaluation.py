"""A model against the validation data."""

from __future__ import annotations

import time

import torch

from phalanx.data.source import Source
from phalanx.parallel.strategy import Strategy, cross_entropy_sum
from phalanx.records.divergence import recorded_loss
from phalanx.records.schema import Evaluation
from phalanx.train.hits import num_right

EVALUATION_BATCH_SIZE = 500


@torch.no_grad()
def evaluate(strategy: Strategy, source: Source, epoch: int, *, began_at: float) -> Evaluation:
    """This rank's part of the validation data, each sample of which one rank counts once."""
    began = time.perf_counter()
    samples, loss_sum, correct = 0, 0.0, 0
    if strategy.role == "worker":
        strategy.model.eval()
        for batch in source.validation_batches(
            rank=strategy.data_rank, num_ranks=strategy.data_size, batch_size=EVALUATION_BATCH_SIZE
        ):
            logits = strategy.predict(batch.inputs)
            if strategy.counts and logits is not None:
                samples += batch.num_samples
                loss_sum += cross_entropy_sum(logits, batch.targets).item()
                correct += num_right(logits, batch.targets)
        strategy.model.train()
    ended = time.perf_counter()
    return Evaluation(
        at_s=ended - began_at,
        epoch=epoch,
        evaluation_s=ended - began,
        samples=samples,
        loss_sum=recorded_loss(loss_sum),
        correct=correct,
    )
