"""The one training loop: every strategy, every model."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.data.dataset import Dataset
from phalanx.data.sampler import GlobalBatches, RankBatch, evaluation_shard, num_batches
from phalanx.parallel.strategy import IGNORED, Batch, Strategy, cross_entropy_sum
from phalanx.records.files import EventWriter
from phalanx.records.schema import Action, Epoch, Evaluation, Memory, Step
from phalanx.records.totals import RankTotals
from phalanx.train.memory import resident_bytes
from phalanx.train.schedule import Schedule

EVALUATION_BATCH_SIZE = 500
MEASURED_STEP = 2
"""The step after which memory is measured: by then every buffer has been made."""
MOST_LOGITS = 2**22
"""Held before they are looked at all together, which is faster than after every step."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """All that a rank holds while it trains."""

    strategy: Strategy
    schedule: Schedule
    dataset: Dataset
    global_batch_size: int
    seed: int
    writer: EventWriter
    began_at: float  # time.perf_counter() that events count from
    delay_s: float = 0.0  # by which every step of this rank is made slower
    resident_before: int | None = None  # bytes of the process before the model was made
    first_epoch: int = 0  # more than 0 in a run that goes on

    def is_measured(self, step: int, steps: int) -> bool:
        """Whether memory is measured after `step`. steps: of an epoch."""
        return step == self.first_epoch * steps + MEASURED_STEP


def run_epoch(work: Work, epoch: int) -> RankTotals:
    """Train on every sample once and evaluate. Collective; the ranks start and end together."""
    strategy = work.strategy
    communicated_before, traffic_before = strategy.communicated_bytes, strategy.traffic()
    staleness_before = strategy.staleness()
    strategy.barrier()
    began = time.perf_counter()
    trained = train_epoch(work, epoch)
    strategy.finish_epoch()
    strategy.barrier()
    ended = time.perf_counter()
    sent, received = _difference(strategy.traffic(), traffic_before)
    work.writer.add(
        Epoch(
            at_s=ended - work.began_at,
            epoch=epoch,
            train_s=ended - began,
            samples=trained.samples,
            loss_sum=trained.loss_sum,
            correct=trained.hits,
            communicated_bytes=strategy.communicated_bytes - communicated_before,
            sent_bytes=sent,
            received_bytes=received,
            staleness=dict(strategy.staleness() - staleness_before),
        )
    )
    evaluation = evaluate(work, epoch)
    work.writer.add(evaluation)
    return RankTotals(
        train_s=ended - began,
        communication_s=trained.communication_s,
        samples=trained.samples,
        loss_sum=trained.loss_sum,
        correct=trained.hits,
        targets=trained.samples * work.dataset.shape.targets_per_sample,
        validation_targets=evaluation.samples * work.dataset.shape.targets_per_sample,
        validation_loss_sum=evaluation.loss_sum,
        validation_correct=evaluation.correct,
        steps=trained.steps,
    )


@dataclass
class Trained:
    """One rank's epoch."""

    samples: int = 0
    loss_sum: float = 0.0
    hits: int = 0
    communication_s: float = 0.0
    steps: int = 0


def train_epoch(work: Work, epoch: int) -> Trained:
    """One update for each global batch of the epoch."""
    strategy = work.strategy
    num_samples = len(work.dataset.train_targets)
    steps = num_batches(num_samples, work.global_batch_size)
    if strategy.role == "server":
        strategy.serve(steps)
        if any(work.is_measured(epoch * steps + step, steps) for step in range(steps)):
            work.writer.add(_memory(work))
        return Trained()
    batches = GlobalBatches(
        num_samples=num_samples,
        global_batch_size=work.global_batch_size,
        seed=work.seed,
        epoch=epoch,
        rank=strategy.data_rank,
        world_size=strategy.data_size,
    )
    trained, hits = Trained(), Hits(work.dataset.train_targets)
    ready_at = time.perf_counter()
    for step, batch in enumerate(batches, epoch * steps):
        event, logits, ready_at = update(work, batch, epoch, step, ready_at)
        if strategy.counts and logits is not None:
            hits.add(logits, batch.indices)
        trained.steps += 1
        trained.samples += event.samples
        trained.loss_sum += event.loss_sum
        trained.communication_s += event.communication_s
        work.writer.add(event)
        for action in strategy.actions():
            work.writer.add(Action(at_s=event.at_s, **action._asdict()))
        if work.is_measured(step, steps):
            work.writer.add(_memory(work))
            ready_at = time.perf_counter()
    trained.hits = hits.total()
    return trained


def update(
    work: Work, rank_batch: RankBatch, epoch: int, step: int, began: float
) -> tuple[Step, Tensor | None, float]:
    """One step of the optimizer on this rank's part of a global batch.

    began: `time.perf_counter()` at which the previous step ended.
    Returns: the record, the logits (n, …, classes) where this rank has them, and the time at which
    the step ended.
    """
    strategy, clock = work.strategy, time.perf_counter
    batch = batch_of(work.dataset, rank_batch, step)
    if work.delay_s:
        time.sleep(work.delay_s)
    loaded = clock()
    for group in strategy.optimizer.param_groups:
        group["lr"] = work.schedule.at(step)
    result = strategy.step(batch)
    ended = clock()
    timed_s = result.forward_s + result.backward_s + result.communication_s
    event = Step(
        at_s=ended - work.began_at,
        epoch=epoch,
        step=step,
        samples=batch.num_samples if strategy.counts else 0,
        loss_sum=result.loss_sum if strategy.counts else 0.0,
        data_s=loaded - began,
        forward_s=result.forward_s,
        backward_s=result.backward_s,
        communication_s=result.communication_s,
        optimizer_s=max(0.0, ended - loaded - timed_s),
        hidden_s=result.hidden_s,
        last_bucket_s=result.last_bucket_s,
        is_skipped=result.is_skipped,
    )
    logits = None if result.logits is None else result.logits.detach()[: batch.num_samples]
    return event, logits, ended


def batch_of(data: Dataset, batch: RankBatch, step: int) -> Batch:
    """The samples of a rank's part of a global batch.

    A rank that got nothing of a small last batch takes part with a borrowed sample that counts for
    nothing, so that its collectives happen all the same.
    """
    num_samples = len(batch.indices)
    indices = batch.indices if num_samples else torch.zeros(1, dtype=torch.int64)
    # Not `train_inputs[indices]`: that takes more than twice as long for the same bytes.
    inputs = data.train_inputs.index_select(0, indices)
    targets = data.train_targets.index_select(0, indices)
    if not num_samples:
        targets.fill_(IGNORED)
    global_targets = batch.global_size * data.shape.targets_per_sample
    return Batch(inputs, targets, num_samples, global_targets, step)


class Hits:
    """Counts right predictions, many steps at a time."""

    def __init__(self, targets: Tensor) -> None:
        self._targets, self._total, self._waiting = targets, 0, 0
        self._logits: list[Tensor] = []
        self._indices: list[Tensor] = []

    def add(self, logits: Tensor, indices: Tensor) -> None:
        """logits: (n, …, classes) of the samples `indices`."""
        self._logits.append(logits)
        self._indices.append(indices)
        self._waiting += logits.numel()
        if self._waiting >= MOST_LOGITS:
            self._count()

    def total(self) -> int:
        self._count()
        return self._total

    def _count(self) -> None:
        if not self._logits:
            return
        targets = self._targets[torch.cat(self._indices)]
        self._total += int((torch.cat(self._logits).argmax(-1) == targets).sum())
        self._logits.clear()
        self._indices.clear()
        self._waiting = 0


@torch.no_grad()
def evaluate(work: Work, epoch: int) -> Evaluation:
    """This rank's part of the validation data, each sample of which one rank counts once."""
    began = time.perf_counter()
    strategy, data = work.strategy, work.dataset
    samples, loss_sum, correct = 0, 0.0, 0
    if strategy.role == "worker":
        strategy.model.eval()
        for inputs, targets, num_samples in _evaluation_batches(data, strategy):
            logits = strategy.predict(inputs)
            if strategy.counts and logits is not None:
                samples += num_samples
                loss_sum += cross_entropy_sum(logits, targets).item()
                correct += int((logits.argmax(-1) == targets).sum())
        strategy.model.train()
    ended = time.perf_counter()
    return Evaluation(
        at_s=ended - work.began_at,
        epoch=epoch,
        evaluation_s=ended - began,
        samples=samples,
        loss_sum=loss_sum,
        correct=correct,
    )


def _evaluation_batches(data: Dataset, strategy: Strategy) -> list[tuple[Tensor, Tensor, int]]:
    """As many on every rank: ranks that share a model predict together, if need be on a borrowed
    sample that counts for nothing."""
    total, parts = len(data.validation_targets), strategy.data_size
    mine = evaluation_shard(total, strategy.data_rank, parts)
    longest = len(evaluation_shard(total, 0, parts))
    batches = []
    for offset in range(0, longest, EVALUATION_BATCH_SIZE):
        start = mine.start + offset
        stop = min(start + EVALUATION_BATCH_SIZE, mine.stop)
        part = slice(start, stop) if start < stop else slice(0, 1)
        inputs, targets = data.validation_inputs[part], data.validation_targets[part]
        if start >= stop:
            targets = torch.full_like(targets, IGNORED)
        batches.append((inputs, targets, max(0, stop - start)))
    return batches


def _memory(work: Work) -> Memory:
    state = work.strategy.state_bytes()
    now = resident_bytes()
    known = now is not None and work.resident_before is not None
    return Memory(
        at_s=time.perf_counter() - work.began_at,
        parameters_bytes=state.parameters,
        gradients_bytes=state.gradients,
        optimizer_bytes=state.optimizer,
        resident_bytes=now - work.resident_before if known else None,  # type: ignore[operator]
    )


def _difference(
    after: tuple[int, int] | None, before: tuple[int, int] | None
) -> tuple[int | None, int | None]:
    if after is None:
        return None, None
    sent, received = before or (0, 0)
    return after[0] - sent, after[1] - received
