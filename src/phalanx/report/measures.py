"""Reduction of ranks' events to the measures of a run: times, losses, accuracies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from phalanx.records.divergence import mean_loss
from phalanx.records.events import EpochEvent, EvaluationEvent, TrainingEvaluationEvent
from phalanx.records.schema import Run, Setting, Status
from phalanx.records.waiting import communicates_within_passes
from phalanx.report.links import IN_STEP, LinkShares, link_shares
from phalanx.report.overlap import Overlap, mean_overlap
from phalanx.report.rank_measures import PARTS, RankMeasure, ratio_or_none

DEFAULT_ZERO_STAGE = 3
SCRATCH_MODEL = "network"
WARM_UP_FROM_EPOCHS = 3  # minimum of epochs to leave the first out

RunStatus = Status | Literal["missing", "damaged"]
CountingEvent = EpochEvent | EvaluationEvent | TrainingEvaluationEvent


@dataclass(frozen=True, kw_only=True)
class EpochMeasure:
    """One epoch over all ranks; epoch -1 is the model before the first update.

    Losses and accuracies are those of a prediction: of an image, or of a character of a text."""

    epoch: int
    epoch_s: float  # of the slowest rank, training only
    trained_s: float  # sum of epoch_s so far
    samples: int
    train_loss: float | None
    train_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    first_sample: int = 0  # more than 0 in the first epoch of a resumed run


@dataclass(frozen=True, kw_only=True)
class RunMeasure:
    """One run. `run` is None when it was planned but has no folder yet, or cannot be read."""

    name: str
    status: RunStatus
    error: str | None = None
    run: Run | None = None
    ranks: Mapping[int, RankMeasure] = field(default_factory=dict)
    epochs: tuple[EpochMeasure, ...] = ()
    timed_epochs: tuple[int, ...] = ()  # epochs that the median time is computed from
    epoch_s: float | None = None  # median
    images_per_s: float | None = None
    communication_share: float | None = None  # exposed ÷ training time, mean over ranks;
    # None where messages go within the passes and are timed as these
    step_parts_s: tuple[float, ...] | None = None  # a mean step, in the order of PARTS
    overlaps: Mapping[int, Overlap] = field(default_factory=dict)  # by epoch, mean over ranks
    overlap: Overlap | None = None  # over the timed epochs
    links: LinkShares | None = None
    """Of a step of the timed epochs, where every rank makes the same."""
    processor_s: tuple[float, float] | None = None
    """User and system time of all ranks in a timed epoch, medians; None where nobody measured."""
    final_train_accuracy: float | None = None  # of the final model, on some of the training data
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
    def timed_s(self) -> tuple[float, ...]:
        """Seconds of the timed epochs."""
        return tuple(e.epoch_s for e in self.epochs if e.epoch in self.timed_epochs)

    @property
    def final_accuracy(self) -> float | None:
        """Validation accuracy after the last epoch, else the last that the program has logged."""
        known = self.trained[-1].validation_accuracy if self.trained else None
        return logged_accuracy(self.ranks) if known is None else known

    @property
    def trained(self) -> tuple[EpochMeasure, ...]:
        """The epochs that trained, without the evaluation before the first."""
        return tuple(epoch for epoch in self.epochs if epoch.epoch >= 0)


def measure_run(
    run: Run, ranks: Mapping[int, RankMeasure], *, unseen: Sequence[int] = ()
) -> RunMeasure:
    """Return the measures of a run; times are None when no epoch was finished by every rank.

    unseen: ranks whose records lie elsewhere; rank 0 must have summaries then.
    """
    lost = run.outcome.lost
    left = {rank: measure for rank, measure in ranks.items() if rank not in lost}
    if run.setting.num_spares:  # which have not made all steps
        left = {rank: left[rank] for rank in left if rank < run.setting.ranks} or left
    is_summed = unseen or (lost and any(rank.summaries for rank in ranks.values()))
    epochs = _summarized(ranks.values()) if is_summed else _epochs(left)
    everyone = () if unseen or lost else tuple(left.values())
    timed = _whole(timed_epochs([epoch.epoch for epoch in epochs if epoch.epoch >= 0]), epochs)
    counted = [epoch for epoch in epochs if epoch.epoch in timed]
    epoch_s = median(epoch.epoch_s for epoch in counted) if timed else None
    is_told = not _exchanges_within(run.setting)
    return RunMeasure(
        name=run.run,
        status=run.outcome.status,
        error=_error(run),
        run=run,
        ranks=ranks,
        epochs=epochs,
        timed_epochs=timed,
        epoch_s=epoch_s,
        images_per_s=_rate(counted, epochs),
        communication_share=_communication_share(everyone, timed) if is_told else None,
        step_parts_s=_step_parts(everyone, timed) if is_told else None,
        overlaps={
            epoch: overlap
            for epoch in sorted({number for rank in everyone for number in rank.epochs})
            if (overlap := _overlap(everyone, [epoch]))
        },
        overlap=_overlap(everyone, timed),
        links=_links(run.setting, everyone, timed) if is_told else None,
        processor_s=_processor_s(everyone, timed),
        final_train_accuracy=_final_train_accuracy(everyone),
        unseen=tuple(unseen),
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


def _final_train_accuracy(ranks: Iterable[RankMeasure]) -> float | None:
    everyone = list(ranks)
    events = [rank.training_evaluation for rank in everyone]
    known = [event for event in events if event is not None]
    if not known or len(known) < len(everyone):
        return None
    return _accuracy(known, max(rank.targets_per_sample for rank in everyone))


def timed_epochs(epochs: Sequence[int]) -> tuple[int, ...]:
    """The epochs whose time counts: the first is warm-up, unless there are fewer than three."""
    return tuple(epochs[1:] if len(epochs) >= WARM_UP_FROM_EPOCHS else epochs)


def _processor_s(ranks: Iterable[RankMeasure], timed: Sequence[int]) -> tuple[float, float] | None:
    everyone = list(ranks)
    sums = []
    for epoch in timed:
        events = [rank.epochs[epoch].event for rank in everyone]
        user_s = [event.user_s for event in events if event.user_s is not None]
        system_s = [event.system_s for event in events if event.system_s is not None]
        if events and len(user_s) == len(system_s) == len(events):
            sums.append((sum(user_s), sum(system_s)))
    if not sums:
        return None
    return median(user for user, _ in sums), median(system for _, system in sums)


def _links(
    setting: Setting, ranks: Sequence[RankMeasure], timed: Sequence[int]
) -> LinkShares | None:
    if setting.strategy not in IN_STEP or not timed or not ranks:
        return None
    epochs = [[rank.epochs[epoch] for rank in ranks] for epoch in timed]
    return link_shares(epochs, num_nodes=setting.nodes)


def _whole(timed: Sequence[int], epochs: Sequence[EpochMeasure]) -> tuple[int, ...]:
    """Return the epochs that this run made from their first sample; resumed ones take less time."""
    return tuple(e.epoch for e in epochs if e.epoch in timed and not e.first_sample)


def _rate(counted: Sequence[EpochMeasure], epochs: Sequence[EpochMeasure]) -> float | None:
    """Samples a second of the timed epochs; of parts of epochs where there is nothing else."""
    known = counted or [epoch for epoch in epochs if epoch.epoch >= 0]
    rates = [epoch.samples / epoch.epoch_s for epoch in known if epoch.epoch_s and epoch.samples]
    return median(rates) if rates else None


def _exchanges_within(setting: Setting) -> bool:
    """The network from scratch times its messages wherever they are, bitwise runs after passes."""
    if setting.options.get("bitwise"):
        return False
    stage = setting.options.get("zero_stage", DEFAULT_ZERO_STAGE)
    return setting.model != SCRATCH_MODEL and communicates_within_passes(setting.strategy, stage)


def _overlap(ranks: Iterable[RankMeasure], epochs: Sequence[int]) -> Overlap | None:
    known = [
        rank.epochs[epoch].overlap for rank in ranks for epoch in epochs if epoch in rank.epochs
    ]
    return mean_overlap([overlap for overlap in known if overlap])


def _epochs(ranks: Mapping[int, RankMeasure]) -> tuple[EpochMeasure, ...]:
    if not ranks:
        return ()
    everyone = ranks.values()
    targets_per_sample = max(rank.targets_per_sample for rank in everyone)
    trained = set.intersection(*(set(rank.epochs) for rank in everyone))
    evaluated = set.intersection(*(set(rank.evaluations) for rank in everyone))
    measures = []
    trained_s = 0.0
    for epoch in sorted(trained | (evaluated & {-1})):
        events = [rank.epochs[epoch].event for rank in everyone] if epoch in trained else []
        evaluations = [rank.evaluations[epoch] for rank in everyone] if epoch in evaluated else []
        epoch_s = max((event.train_s for event in events), default=0.0)
        trained_s += epoch_s
        measures.append(_epoch(epoch, epoch_s, trained_s, events, evaluations, targets_per_sample))
    return tuple(measures)


def _epoch(
    epoch: int,
    epoch_s: float,
    trained_s: float,
    events: Sequence[EpochEvent],
    evaluations: Sequence[EvaluationEvent],
    targets_per_sample: int,
) -> EpochMeasure:
    return EpochMeasure(
        epoch=epoch,
        epoch_s=epoch_s,
        trained_s=trained_s,
        samples=sum(event.samples for event in events),
        first_sample=max((event.first_sample for event in events), default=0),
        train_loss=_mean_loss(events, targets_per_sample),
        train_accuracy=_accuracy(events, targets_per_sample),
        validation_loss=_mean_loss(evaluations, targets_per_sample),
        validation_accuracy=_accuracy(evaluations, targets_per_sample),
    )


def _mean_loss(
    events: Sequence[EpochEvent | EvaluationEvent], targets_per_sample: int
) -> float | None:
    targets = _targets(events, targets_per_sample)
    return mean_loss(sum(e.loss_sum for e in events), targets) if targets else None


def _accuracy(events: Sequence[CountingEvent], targets_per_sample: int) -> float | None:
    correct = [event.correct for event in events if event.correct is not None]
    if len(correct) < len(events):
        return None
    return ratio_or_none(sum(correct), _targets(events, targets_per_sample))


def _targets(events: Sequence[CountingEvent], targets_per_sample: int) -> int:
    return sum(e.samples for e in events) * targets_per_sample


def _communication_share(ranks: Iterable[RankMeasure], timed: Sequence[int]) -> float | None:
    communication = PARTS.index("communication")
    shares = []
    for rank in ranks:
        epochs = [rank.epochs[epoch] for epoch in timed]
        communication_s = sum(epoch.parts_s[communication] for epoch in epochs)
        if any(epoch.steps for epoch in epochs):
            shares.append(
                ratio_or_none(communication_s, sum(epoch.event.train_s for epoch in epochs))
            )
    known = [share for share in shares if share is not None]
    return fmean(known) if known else None


def _step_parts(ranks: Iterable[RankMeasure], timed: Sequence[int]) -> tuple[float, ...] | None:
    epochs = [rank.epochs[epoch] for rank in ranks for epoch in timed]
    steps = sum(epoch.steps for epoch in epochs)
    if not steps:
        return None
    return tuple(sum(epoch.parts_s[i] for epoch in epochs) / steps for i in range(len(PARTS)))


def _error(run: Run) -> str | None:
    outcome = run.outcome
    if outcome.error and outcome.rank is not None:
        return f"rank {outcome.rank}: {outcome.error}"
    return outcome.error
