"""Comparison of a program's first steps alone and on ranks: what differs first, and why. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from phalanx.records.watched import TensorState, WatchedRank

MASK = 2**64 - 1

Cause = Literal[
    "batch size",
    "learning rate",
    "first parameters",
    "data",
    "loss over samples",
    "batch norm",
    "loop",
    "kept gradient",
    "update",
    "log",
    "generator",
    "hash order",
    "time or file",
    "failure",
]
Place = Literal["first parameters", "data", "loss", "learning rate", "parameters", "steps"]


@dataclass(frozen=True, kw_only=True)
class ProbableCause:
    """The first difference of two runs, and its likely cause."""

    cause: Cause
    text: str
    step: int | None = None


@dataclass(frozen=True)
class Difference:
    """The first place where two runs part."""

    place: Place
    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """Relative size of differences that are rounding: half of the digits."""

    epsilon: float

    @classmethod
    def of(cls, *, is_double: bool) -> Tolerance:
        """Return the tolerance of a check in float64, or in the program's own types."""
        return cls(epsilon=2.0**-52 if is_double else 2.0**-23)

    @property
    def relative(self) -> float:
        return math.sqrt(self.epsilon)

    def holds(self, one: float, other: float, scale: float = 0.0) -> bool:
        return abs(one - other) <= self.relative * max(abs(one), abs(other), scale)


def first_difference(
    one: Sequence[WatchedRank],
    other: Sequence[WatchedRank],
    tolerance: Tolerance,
    *,
    compares_data: bool = True,
) -> Difference | None:
    """Return where two runs of a program part first; None: nowhere."""
    first, second = one[0].start.parameters, other[0].start.parameters
    if not _are_alike(first, second, first, tolerance):
        name = _largest(first, second)
        return Difference("first parameters", 0, f"the model starts with a different {name}")
    begin_loss = abs(loss_of(one, 0)) if one[0].steps else 0.0
    for number, (left, right) in enumerate(zip_longest(one[0].steps, other[0].steps)):
        if left is None or right is None:
            counts = f"{len(one[0].steps)} and {len(other[0].steps)}"
            return Difference("steps", number, f"the runs have {counts} steps")
        if compares_data and data_of(one, number) != data_of(other, number):
            return Difference("data", number, f"step {number}: data differ")
        losses = loss_of(one, number), loss_of(other, number)
        if not tolerance.holds(*losses, scale=1e-3 * begin_loss):
            text = f"step {number}: the loss is {losses[0]:.6g} and {losses[1]:.6g}"
            return Difference("loss", number, text)
        if not all(map(tolerance.holds, left.rates, right.rates)):
            text = f"step {number}: the learning rate is {left.rates[0]:g} and {right.rates[0]:g}"
            return Difference("learning rate", number, text)
        if not _are_alike(left.changes, right.changes, first, tolerance):
            name = _largest(left.changes, right.changes)
            return Difference("parameters", number, f"step {number}: {name} is updated differently")
    return None


def loss_of(run: Sequence[WatchedRank], number: int) -> float:
    """Return the mean loss of a step's global batch."""
    steps = [rank.steps[number] for rank in run if number < len(rank.steps)]
    return sum(step.loss_sum for step in steps) / max(1, steps[0].global_samples)


def data_of(run: Sequence[WatchedRank], number: int) -> int:
    """Return the sum of the words of a step's global batch."""
    steps = [rank.steps[number] for rank in run if number < len(rank.steps)]
    return sum(sum(step.data.values()) for step in steps) & MASK


def _are_alike(
    one: Sequence[TensorState],
    other: Sequence[TensorState],
    weights: Sequence[TensorState],
    tolerance: Tolerance,
) -> bool:
    """Return whether the tensors are equal up to rounding. weights: whose digits bound them."""
    if [each.name for each in one] != [each.name for each in other]:
        return False
    gap = math.hypot(*(a.product - b.product for a, b in zip(one, other, strict=True)))
    norms = max(math.hypot(*(t.norm for t in one)), math.hypot(*(t.norm for t in other)))
    rounding = 64 * tolerance.epsilon * math.hypot(*(tensor.norm for tensor in weights))
    return gap <= tolerance.relative * norms + rounding


def _largest(one: Sequence[TensorState], other: Sequence[TensorState]) -> str:
    """Return the name of the tensor that differs most, for its size."""
    if [each.name for each in one] != [each.name for each in other]:
        return "set of parameters"
    gaps = {
        a.name: abs(a.product - b.product) / (max(a.norm, b.norm) or 1)
        for a, b in zip(one, other, strict=True)
    }
    return max(gaps, key=lambda name: gaps[name])


def judge_repetition(
    one: Sequence[WatchedRank],
    other: Sequence[WatchedRank],
    with_its_seed: Sequence[WatchedRank] | None,
    once_more: Sequence[WatchedRank] | None,
    tolerance: Tolerance,
) -> ProbableCause | None:
    """Return why the same command gives two results alone; None: it gives one.

    other: with other seeds of NumPy and Python, and another order of sets. with_its_seed: with
    the seeds of `one` alone. once_more: with all of `one`.
    """
    found = first_difference(one, other, tolerance)
    if found is None:
        return None
    what = f"the same command twice in one process: {found.text}"

    def is_like_one(run: Sequence[WatchedRank] | None) -> bool:
        return run is not None and first_difference(one, run, tolerance) is None

    if is_like_one(with_its_seed):
        why = "random numbers of NumPy or Python are not seeded: np.random.seed(0), random.seed(0)"
        return ProbableCause(cause="generator", text=f"{what}: {why}", step=found.step)
    if is_like_one(once_more):
        why = "the order of a set or hash() differs from run to run: use sorted(…)"
        return ProbableCause(cause="hash order", text=f"{what}: {why}", step=found.step)
    why = "perhaps the program reads the time, a file that changes, or random numbers of the system"
    return ProbableCause(cause="time or file", text=f"{what}: {why}", step=found.step)


def judge_ranks(
    alone: Sequence[WatchedRank],
    ranks: Sequence[WatchedRank],
    cut: Sequence[WatchedRank] | None,
    tolerance: Tolerance,
) -> ProbableCause | None:
    """Return why ranks train otherwise than one process; None: they do not.

    cut: one process with as many micro-batches per step; None where that is refused.
    """
    on = f"on {len(ranks)} ranks"
    sizes = _global_samples(alone), _global_samples(ranks)
    if sizes[0] != sizes[1]:
        text = (
            f"a global batch has {sizes[0]} samples in one process and {sizes[1]} {on}: "
            "batch_size= is summed over all ranks: do not divide or multiply it by their number"
        )
        return ProbableCause(cause="batch size", text=text, step=0)
    apart = _first_apart(ranks, tolerance)
    found = first_difference(alone, ranks, tolerance)
    if found is None and apart is None:
        return None
    if found is not None and found.place == "learning rate":
        text = (
            f"{found.text} {on}: it depends on the number of ranks, or on the rank that steps a "
            "scheduler"
        )
        return ProbableCause(cause="learning rate", text=text, step=found.step)
    if found is not None and found.place == "first parameters":
        text = f"{found.text} {on}: the model of rank 0 depends on the number of ranks"
        return ProbableCause(cause="first parameters", text=text)
    of_cut = None if cut is None else first_difference(cut, ranks, tolerance)
    if cut is not None and of_cut is None and found is not None and found.place == "data":
        # Samples are put together otherwise in parts, such as graphs whose atoms are numbered.
        found = first_difference(alone, ranks, tolerance, compares_data=False)
        if found is None and apart is None:
            return None
    if cut is not None and of_cut is None and found is not None and apart is None:
        return _of_cut(alone, found, len(ranks))
    if apart is not None and (found is None or apart.step <= found.step):
        return _of_update(ranks, apart, f"{apart.text}")
    assert found is not None
    if found.place == "data":
        return _of_data(found, cut, ranks)
    if found.place == "parameters":
        return _of_update(ranks, found, f"{found.text} {on}, with the same data and loss")
    text = (
        f"{found.text} {on}, with the same data: the loop's result depends on the rank, or on "
        "earlier results of the rank"
    )
    return ProbableCause(cause="loop", text=text, step=found.step)


def _of_cut(
    alone: Sequence[WatchedRank], found: Difference, num_ranks: int
) -> ProbableCause | None:
    """Return why micro-batches differ from their global batch; None: by random numbers."""
    layers = alone[0].start.batch_norm
    fixed = f"micro_batches={num_ranks} splits the batch equally on any number of ranks"
    what = f"{found.text} on {num_ranks} ranks, by the same data: "
    if layers:
        text = f"{what}batch norm ({layers[0]}) normalises each micro-batch separately: {fixed}"
        text += ", or take SyncBatchNorm"
        return ProbableCause(cause="batch norm", text=text, step=found.step)
    if draws(alone):
        return None
    text = (
        f"{what}the loss, or a norm, combines several samples, but each rank sees only part of "
        f"them: gather them by run.gather; or {fixed}"
    )
    return ProbableCause(cause="loss over samples", text=text, step=found.step)


def _of_data(
    found: Difference, cut: Sequence[WatchedRank] | None, ranks: Sequence[WatchedRank]
) -> ProbableCause:
    number, whose = found.step, ""
    if cut is not None and number < len(cut[0].steps):
        truth = cut[0].steps[number].data
        wrong = [
            (rank, part)
            for rank, each in enumerate(ranks)
            for part, value in each.steps[number].data.items()
            if truth.get(part) != value
        ]
        whose = f", first micro-batch {wrong[0][1]} of rank {wrong[0][0]}" if wrong else ""
    text = f"step {number}: data on {len(ranks)} ranks differ from those of one process{whose}: "
    text += (
        "they depend on the rank, or are random, such as augmentation in __getitem__, which "
        "bitwise=True seeds by sample"
        if number == 0
        else "they depend on the model, on results of a rank, or on a generator"
    )
    return ProbableCause(cause="data", text=text, step=number)


def _of_update(ranks: Sequence[WatchedRank], found: Difference, what: str) -> ProbableCause:
    kept = ranks[0].steps[0].keeps_gradient
    if kept:
        text = (
            f"{what}: the optimizer keeps the gradient of {kept} without a copy, so it changes "
            "with the next step: store p.grad.clone()"
        )
        return ProbableCause(cause="kept gradient", text=text, step=found.step)
    text = f"{what}: the program changes gradients or parameters on some ranks only"
    return ProbableCause(cause="update", text=text, step=found.step)


def _first_apart(ranks: Sequence[WatchedRank], tolerance: Tolerance) -> Difference | None:
    """Return the first step after which a rank holds other parameters than rank 0."""
    weights = ranks[0].start.parameters
    for number, step in enumerate(ranks[0].steps):
        for rank, other in enumerate(ranks[1:], 1):
            changes = other.steps[number].changes if number < len(other.steps) else []
            if not _are_alike(step.changes, changes, weights, tolerance):
                name = _largest(step.changes, changes)
                text = f"step {number}: rank {rank} has a different {name} from rank 0"
                return Difference("parameters", number, text)
    return None


def _global_samples(run: Sequence[WatchedRank]) -> int:
    return run[0].steps[0].global_samples if run[0].steps else 0


def draws(run: Sequence[WatchedRank]) -> bool:
    """Return whether the loop's body draws random numbers, which belong to micro-batches."""
    return any(step.draws for rank in run for step in rank.steps)


def judge_logs(
    alone: Sequence[WatchedRank],
    again: Sequence[WatchedRank],
    ranks: Sequence[WatchedRank],
    tolerance: Tolerance,
) -> tuple[list[ProbableCause], list[str]]:
    """Return metrics that ranks log otherwise, and the names of those that differ alone, too, such
    as times."""
    first, second, third = alone[0].metrics, again[0].metrics, ranks[0].metrics
    unsteady = {name for (step, name), value in first.items() if second.get((step, name)) != value}
    findings: dict[str, ProbableCause] = {}
    for (step, name), value in first.items():
        other = third.get((step, name))
        if name in unsteady or name in findings or other is None:
            continue
        if not tolerance.holds(value, other):
            text = (
                f"step {step}: run.log({name}=…) is {value:.6g} alone and {other:.6g} on "
                f"{len(ranks)} ranks, though training is the same: it is the value of rank 0; "
                "run.reduce(value, mean=True) or run.evaluate combines all ranks"
            )
            findings[name] = ProbableCause(cause="log", text=text, step=step)
    return list(findings.values()), sorted(unsteady)
