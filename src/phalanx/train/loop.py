"""The one training loop: every strategy, every model."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.data.dataset import Dataset
from phalanx.data.sampler import GlobalBatches, RankBatch, evaluation_shard
from phalanx.parallel.strategy import Strategy
from phalanx.records.files import EventWriter
from phalanx.records.schema import Epoch, Evaluation, Step
from phalanx.train.metrics import RankTotals
from phalanx.train.schedule import Schedule

EVALUATION_BATCH_SIZE = 500


@dataclass(frozen=True, kw_only=True)
class Work:
    """All that a rank holds while it trains."""

    strategy: Strategy
    model: nn.Module
    module: nn.Module  # what the strategy made of the model; called in the forward pass
    schedule: Schedule
    dataset: Dataset
    global_batch_size: int
    seed: int
    writer: EventWriter
    began_at: float  # time.perf_counter() that events count from


def run_epoch(work: Work, epoch: int) -> RankTotals:
    """Train on every sample once and evaluate. Collective; the ranks start and end together."""
    communicated_before = work.strategy.communicated_bytes
    work.strategy.barrier()
    began = time.perf_counter()
    samples, loss_sum, correct, communication_s = train_epoch(work, epoch)
    work.strategy.barrier()
    ended = time.perf_counter()
    work.writer.add(
        Epoch(
            at_s=ended - work.began_at,
            epoch=epoch,
            train_s=ended - began,
            samples=samples,
            loss_sum=loss_sum,
            correct=correct,
            communicated_bytes=work.strategy.communicated_bytes - communicated_before,
        )
    )
    evaluation = evaluate(work, epoch)
    work.writer.add(evaluation)
    return RankTotals(
        train_s=ended - began,
        communication_s=communication_s,
        samples=samples,
        loss_sum=loss_sum,
        correct=correct,
        validation_samples=evaluation.samples,
        validation_loss_sum=evaluation.loss_sum,
        validation_correct=evaluation.correct,
    )


def train_epoch(work: Work, epoch: int) -> tuple[int, float, int, float]:
    """One update for each global batch of the epoch.

    Returns: this rank's samples, sum of losses, hits, and seconds spent in communication.
    """
    batches = GlobalBatches(
        num_samples=len(work.dataset.train_targets),
        global_batch_size=work.global_batch_size,
        seed=work.seed,
        epoch=epoch,
        rank=work.strategy.rank,
        world_size=work.strategy.size,
    )
    step = epoch * len(batches)
    outputs: list[Tensor] = []
    seen: list[Tensor] = []
    loss_sum = communication_s = 0.0
    ready_at = time.perf_counter()
    for batch in batches:
        event, logits, ready_at = update(work, batch, epoch, step, ready_at)
        outputs.append(logits)
        seen.append(batch.indices)
        loss_sum += event.loss_sum
        communication_s += event.communication_s
        work.writer.add(event)
        step += 1
    indices = torch.cat(seen)
    hits = torch.cat(outputs).argmax(1) == work.dataset.train_targets[indices]
    return len(indices), loss_sum, int(hits.sum()), communication_s


def update(
    work: Work, batch: RankBatch, epoch: int, step: int, began: float
) -> tuple[Step, Tensor, float]:
    """One step of the optimizer on this rank's part of a global batch.

    began: `time.perf_counter()` at which the previous step ended.
    Returns: the record, the logits (n, classes), and the time at which the step ended.
    """
    data, clock = work.dataset, time.perf_counter
    num_samples = len(batch.indices)
    # A rank that got nothing of a small last batch takes part with a borrowed sample that counts
    # for nothing, so that its collectives happen all the same.
    indices = batch.indices if num_samples else torch.zeros(1, dtype=torch.int64)
    # Not `train_inputs[indices]`: that takes more than twice as long for the same bytes.
    images = data.train_inputs.index_select(0, indices)
    labels = data.train_targets.index_select(0, indices)
    loaded = clock()
    logits = work.module(images)
    loss = F.cross_entropy(logits, labels, reduction="sum")
    if not num_samples:
        loss = loss * 0
    forwarded = clock()
    for group in work.strategy.optimizer.param_groups:
        group["lr"] = work.schedule.at(step)
    times = work.strategy.update(loss, batch.global_size)
    loss_sum = loss.item()
    ended = clock()
    event = Step(
        at_s=ended - work.began_at,
        epoch=epoch,
        step=step,
        samples=num_samples,
        loss_sum=loss_sum,
        data_s=loaded - began,
        forward_s=forwarded - loaded,
        backward_s=times.backward_s,
        communication_s=times.communication_s,
        optimizer_s=ended - forwarded - times.backward_s - times.communication_s,
    )
    return event, logits.detach()[:num_samples], ended


@torch.inference_mode()
def evaluate(work: Work, epoch: int) -> Evaluation:
    """This rank's part of the validation data, each sample of which one rank sees once."""
    began = time.perf_counter()
    images, labels = work.dataset.validation_inputs, work.dataset.validation_targets
    mine = evaluation_shard(len(labels), work.strategy.rank, work.strategy.size)
    loss_sum, correct = 0.0, 0
    work.model.eval()
    for start in range(mine.start, mine.stop, EVALUATION_BATCH_SIZE):
        part = slice(start, min(start + EVALUATION_BATCH_SIZE, mine.stop))
        logits = work.model(images[part])
        loss_sum += F.cross_entropy(logits, labels[part], reduction="sum").item()
        correct += int((logits.argmax(1) == labels[part]).sum())
    work.model.train()
    ended = time.perf_counter()
    return Evaluation(
        at_s=ended - work.began_at,
        epoch=epoch,
        evaluation_s=ended - began,
        samples=len(mine),
        loss_sum=loss_sum,
        correct=correct,
    )
