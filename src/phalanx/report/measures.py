"""Measures of a run, from the reduced events of its ranks: times, losses, accuracies, and the share
of a step that exchanges take in the node and between nodes, and waiting for others. Pure.

In a step the rank that comes last to the exchange waits for nobody: its communication time is that
of the exchange itself, and what the others have spent beyond it they have waited. The time of the
exchange is divided as the last rank has measured it: with peers of its node, with other nodes.
Where communication is hidden behind the backward pass, what is left of it is divided as all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import Literal

import numpy as np

from phalanx.records.schema import Run, Setting, Status
from phalanx.records.waiting import communicates_within_passes
from phalanx.report.rank_measures import (
    PARTS,
    Overlap,
    RankEpoch,
    RankMeasure,
    accuracy_of,
    loss_of,
    mean_overlap,
)

FORMULA_SHARE = 0.01
"""Share of the bytes sent that may be by formula where the others are counted."""
IN_STEP = ("mpi", "shared", "gloo", "zero", "local")
"""Strategies of which every rank makes the same steps, and exchanges gradients after them."""


@dataclass(frozen=True, kw_only=True)
class LinkShares:
    """Shares of a mean step of a run, over ranks and steps; None where not measured."""

    step_s: float
    node: float | None  # exchange in the memory of a node
    network: float | None  # exchange with other nodes
    untold: float | None  # exchange of which the link was not measured
    waiting: float  # waiting for ranks that come later
    network_bytes: float | None = None  # sent by a node to others in a step
    is_formula: bool = False  # not counted: the MPI library does not say what it sends


def link_shares(epochs: Sequence[Sequence[RankEpoch]], *, num_nodes: int) -> LinkShares | None:
    """Return the shares of a run; None where ranks do not make the same steps.

    epochs: the timed ones, of each the ranks in their order.
    """
    numbers = [{len(rank.steps) for rank in ranks} for ranks in epochs]
    if min(map(len, epochs)) < 2 or any(len(steps) > 1 or 0 in steps for steps in numbers):
        return None
    by_rank = zip(*epochs, strict=True)
    steps = np.stack([np.concatenate([epoch.steps for epoch in of_rank]) for of_rank in by_rank])
    communication_s = steps["communication_s"]
    last = steps[communication_s.argmin(axis=0), np.arange(steps.shape[1])]
    exchange_s, node_s, network_s = (last[f"{n}_s"] for n in ("communication", "node", "network"))
    if num_nodes == 1:
        node_s, network_s = np.ones_like(node_s), np.zeros_like(node_s)
    is_told = node_s + network_s > 0  # not where they are NaN
    share = network_s[is_told] / (node_s + network_s)[is_told]
    untold_s = exchange_s[~is_told].sum()
    step_s = sum(fmean(sum(rank.parts_s) for rank in ranks) for ranks in epochs)
    sent, is_formula = _bytes_between(epochs)
    return LinkShares(
        step_s=step_s / len(last),
        node=None if untold_s else float((exchange_s[is_told] * (1 - share)).sum() / step_s),
        network=None if untold_s else float((exchange_s[is_told] * share).sum() / step_s),
        untold=float(untold_s / step_s) if untold_s else None,
        waiting=float((communication_s.mean(axis=0) - exchange_s).sum() / step_s),
        network_bytes=None if sent is None else sent / len(last) / num_nodes,
        is_formula=is_formula,
    )


def _bytes_between(epochs: Sequence[Sequence[RankEpoch]]) -> tuple[int | None, bool]:
    """Return the bytes that went between nodes, None where they were not counted, and whether more
    than sums of a few values are by formula."""
    events = [rank.event for ranks in epochs for rank in ranks]
    sent = [event.network_sent_bytes for event in events]
    known = [num_bytes for num_bytes in sent if num_bytes is not None]
    formula = sum(event.formula_bytes or 0 for event in events)
    is_formula = formula > FORMULA_SHARE * sum(event.sent_bytes or 0 for event in events)
    return (sum(known) if len(known) == len(sent) else None), is_formula


DEFAULT_ZERO_STAGE = 3
SCRATCH_MODEL = "network"
WARM_UP_FROM_EPOCHS = 3  # minimum of epochs to leave the first out

RunStatus = Status | Literal["missing", "damaged"]


@dataclass(frozen=True, kw_only=True)
class EpochMeasure:
    """One epoch over all ranks; epoch -1 is the model before the first update.

    Losses and accuracies are those of a prediction: of an image, or of a character of a text."""

    epoch: int
    epoch_s: float  # the slowest rank, training only
    trained_s: float  # sum of epoch_s so far
    samples: int
    train_loss: float | None
    train_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    first_sample: int = 0  # more than 0 in the first epoch of a resumed run


@dataclass(frozen=True, kw_only=True)
class RunMeasure:
    """One run. `run` is None when it is of a study but has no folder yet, or cannot be read."""

    name: str
    status: RunStatus
    error: str | None = None
    run: Run | None = None
    ranks: Mapping[int, RankMeasure] = field(default_factory=dict)
    unseen: tuple[int, ...] = ()
    """Ranks whose records lie elsewhere: times, losses and accuracies are those that rank 0 has
    summed up over all, and what needs every rank's records is not known. So it is where ranks have
    died (`Outcome.lost`), and the first of those that were left has summed up."""
    is_traced: bool = False  # a trace exists or can be made
    folder: Path = Path()
    """Folder of its records."""

    @property
    def setting(self) -> Setting | None:
        return self.run.setting if self.run else None

    @property
    def lost(self) -> Sequence[int]:
        return self.run.outcome.lost if self.run else ()

    @cached_property
    def left(self) -> tuple[RankMeasure, ...]:
        """Ranks that lived, without the spares, which have not made all steps."""
        left = {rank: measure for rank, measure in self.ranks.items() if rank not in self.lost}
        if self.setting and self.setting.num_spares:
            left = {rank: left[rank] for rank in left if rank < self.setting.ranks} or left
        return tuple(left.values())

    @property
    def everyone(self) -> tuple[RankMeasure, ...]:
        """All ranks, where the records of each are known; else none."""
        return () if self.unseen or self.lost else self.left

    @cached_property
    def epochs(self) -> tuple[EpochMeasure, ...]:
        is_summed = self.unseen or (self.lost and any(r.summaries for r in self.ranks.values()))
        return _summarized(self.ranks.values()) if is_summed else _over_ranks(self.left)

    @property
    def trained(self) -> tuple[EpochMeasure, ...]:
        """The epochs that trained, without the evaluation before the first."""
        return tuple(epoch for epoch in self.epochs if epoch.epoch >= 0)

    @cached_property
    def timed(self) -> tuple[EpochMeasure, ...]:
        """Epochs whose time counts: made from their first sample, without the warm-up."""
        numbers = timed_epochs([epoch.epoch for epoch in self.trained])
        return tuple(e for e in self.trained if e.epoch in numbers and not e.first_sample)

    @property
    def timed_s(self) -> tuple[float, ...]:
        return tuple(epoch.epoch_s for epoch in self.timed)

    @property
    def epoch_s(self) -> float | None:
        """Median time of an epoch; None when none was finished by every rank."""
        return median(self.timed_s) if self.timed else None

    @property
    def images_per_s(self) -> float | None:
        """Samples per second of the timed epochs; of parts of epochs where there is nothing
        else."""
        known = [e for e in self.timed or self.trained if e.epoch_s and e.samples]
        return median(e.samples / e.epoch_s for e in known) if known else None

    @property
    def final_accuracy(self) -> float | None:
        """Validation accuracy after the last epoch, else the last that the program has logged."""
        known = self.trained[-1].validation_accuracy if self.trained else None
        return logged_accuracy(self.ranks) if known is None else known

    @property
    def final_train_accuracy(self) -> float | None:
        """Accuracy of the final model, on some of the training data."""
        events = [rank.training_evaluation for rank in self.everyone]
        known = [event for event in events if event is not None]
        if not known or len(known) < len(events):
            return None
        return accuracy_of(known, _targets_per_sample(self.everyone))

    @cached_property
    def timed_ranks(self) -> list[list[RankEpoch]]:
        """Timed epochs of each rank."""
        return [[rank.epochs[epoch.epoch] for epoch in self.timed] for rank in self.everyone]

    @property
    def _is_told(self) -> bool:
        """Communication is timed as such: bitwise runs exchange after the passes, and the network
        from scratch times its messages wherever they are."""
        options = self.setting.options if self.setting else {}
        if self.setting is None or options.get("bitwise") or self.setting.model == SCRATCH_MODEL:
            return True
        stage = options.get("zero_stage", DEFAULT_ZERO_STAGE)
        return not communicates_within_passes(self.setting.strategy, stage)

    @cached_property
    def communication_share(self) -> float | None:
        """Exposed communication ÷ training time, mean over ranks; None where messages go within
        the passes and are timed as these."""
        place, shares = PARTS.index("communication"), []
        for epochs in self.timed_ranks if self._is_told else ():
            train_s = sum(epoch.event.train_s for epoch in epochs)
            if train_s and any(len(epoch.steps) for epoch in epochs):
                shares.append(sum(epoch.parts_s[place] for epoch in epochs) / train_s)
        return fmean(shares) if shares else None

    @cached_property
    def step_parts_s(self) -> tuple[float, ...] | None:
        """A mean step, in the order of PARTS; None as for `communication_share`."""
        epochs = [epoch for rank in self.timed_ranks for epoch in rank]
        steps = sum(len(epoch.steps) for epoch in epochs)
        if not steps or not self._is_told:
            return None
        return tuple(sum(epoch.parts_s[i] for epoch in epochs) / steps for i in range(len(PARTS)))

    @cached_property
    def overlaps(self) -> dict[int, Overlap]:
        """Mean over the ranks, by epoch."""
        numbers = sorted({number for rank in self.everyone for number in rank.epochs})
        every = {n: [r.epochs[n] for r in self.everyone if n in r.epochs] for n in numbers}
        return {n: found for n, epochs in every.items() if (found := _overlap(epochs))}

    @cached_property
    def overlap(self) -> Overlap | None:
        """Mean over ranks and timed epochs."""
        return _overlap([epoch for rank in self.timed_ranks for epoch in rank])

    @cached_property
    def links(self) -> LinkShares | None:
        """Shares of a step of the timed epochs, where every rank makes the same."""
        if self.setting is None or self.setting.strategy not in IN_STEP or not self._is_told:
            return None
        epochs = list(zip(*self.timed_ranks, strict=True))
        return link_shares(epochs, num_nodes=self.setting.nodes) if epochs else None

    @cached_property
    def processor_s(self) -> tuple[float, float] | None:
        """User and system time of all ranks in a timed epoch, medians; None where not measured."""
        times = [
            [(rank.event.user_s, rank.event.system_s) for rank in ranks]
            for ranks in zip(*self.timed_ranks, strict=True)
        ]
        known = [epoch for epoch in times if all(None not in rank for rank in epoch)]
        sums = [[sum(kind) for kind in zip(*epoch, strict=True)] for epoch in known]
        return (median(s[0] for s in sums), median(s[1] for s in sums)) if sums else None


def measure_run(
    run: Run, ranks: Mapping[int, RankMeasure], *, unseen: Sequence[int] = ()
) -> RunMeasure:
    """Return the measures of a run.

    unseen: ranks whose records lie elsewhere; rank 0 must have summaries then.
    """
    outcome, error = run.outcome, run.outcome.error
    if error and outcome.rank is not None:
        error = f"rank {outcome.rank}: {error}"
    return RunMeasure(
        name=run.run, status=outcome.status, error=error, run=run, ranks=ranks, unseen=(*unseen,)
    )


def logged_accuracy(ranks: Mapping[int, RankMeasure]) -> float | None:
    """Return the last metric of a program that is named as an accuracy and is a share."""
    logged = [
        event.metrics[name]
        for rank in ranks.values()
        for event in rank.metrics
        for name in ("accuracy", "validation_accuracy")
        if name in event.metrics
    ]
    return logged[-1] if logged and 0 <= logged[-1] <= 1 else None


def timed_epochs(epochs: Sequence[int]) -> tuple[int, ...]:
    """The epochs whose time counts: the first is warm-up, unless there are fewer than three."""
    return tuple(epochs[1:] if len(epochs) >= WARM_UP_FROM_EPOCHS else epochs)


def _overlap(epochs: Sequence[RankEpoch]) -> Overlap | None:
    return mean_overlap([epoch.overlap for epoch in epochs if epoch.overlap])


def _targets_per_sample(ranks: Sequence[RankMeasure]) -> int:
    return max(rank.targets_per_sample for rank in ranks)


def _summarized(ranks: Iterable[RankMeasure]) -> tuple[EpochMeasure, ...]:
    """Return the epochs as rank 0, or the first that was left, has summed them up."""
    everyone = list(ranks)
    summaries = {epoch: one for rank in everyone for epoch, one in rank.summaries.items()}
    events = {e: one.event for rank in reversed(everyone) for e, one in rank.epochs.items()}
    return tuple(
        EpochMeasure(
            epoch=epoch,
            epoch_s=summary.epoch_s,
            trained_s=summary.trained_s,
            samples=round(summary.images_per_s * summary.epoch_s),
            first_sample=events[epoch].first_sample,
            train_loss=summary.train_loss,
            train_accuracy=summary.train_accuracy,
            validation_loss=summary.validation_loss,
            validation_accuracy=summary.validation_accuracy,
        )
        for epoch, summary in sorted(summaries.items())
        if epoch in events
    )


def _over_ranks(ranks: Sequence[RankMeasure]) -> tuple[EpochMeasure, ...]:
    """Return the epochs that every rank has finished."""
    if not ranks:
        return ()
    targets, trained_s = _targets_per_sample(ranks), 0.0
    trained = set.intersection(*(set(rank.epochs) for rank in ranks))
    evaluated = set.intersection(*(set(rank.evaluations) for rank in ranks))
    found = []
    for epoch in sorted(trained | (evaluated & {-1})):
        events = [rank.epochs[epoch].event for rank in ranks] if epoch in trained else []
        judged = [rank.evaluations[epoch] for rank in ranks] if epoch in evaluated else []
        epoch_s = max((event.train_s for event in events), default=0.0)
        trained_s += epoch_s
        found.append(
            EpochMeasure(
                epoch=epoch,
                epoch_s=epoch_s,
                trained_s=trained_s,
                samples=sum(event.samples for event in events),
                first_sample=max((event.first_sample for event in events), default=0),
                train_loss=loss_of(events, targets),
                train_accuracy=accuracy_of(events, targets),
                validation_loss=loss_of(judged, targets),
                validation_accuracy=accuracy_of(judged, targets),
            )
        )
    return tuple(found)
