"""The first difference of two runs, and its cause, by what their ranks have written."""

from typing import Any

import msgspec
import pytest

from phalanx.records.watched import TensorState, WatchedRank, WatchedStart, WatchedStep
from phalanx.report.program_check import (
    Tolerance,
    first_difference,
    judge_logs,
    judge_ranks,
    judge_repetition,
)

TOLERANCE = Tolerance.of(is_double=True)
WEIGHT = TensorState("weight", 3.0, 0.5)


def rank(*losses: float, samples: int = 16, num_ranks: int = 1, **changes: Any) -> WatchedRank:
    """One of the ranks of a run, each of which has the same share of the losses and the data."""
    start = WatchedStart(
        parameters=[WEIGHT],
        batch_norm=changes.pop("batch_norm", []),
        has_fixed_cut=False,
        is_sharded=False,
    )
    step = WatchedStep(
        step=0,
        loss_sum=0.0,
        global_samples=samples,
        data={0: 840 // num_ranks},
        rates=[0.1],
        draws=False,
        keeps_gradient="",
        changes=[TensorState("weight", 0.1, 0.05)],
    )
    steps = [
        msgspec.structs.replace(
            step, **{"step": n, "loss_sum": loss * samples / num_ranks, **changes}
        )
        for n, loss in enumerate(losses)
    ]
    return WatchedRank(start, steps, {})


ALONE = [rank(2.0, 1.0)]


def ranks(*losses: float, **changes: Any) -> list[WatchedRank]:
    return [rank(*losses, num_ranks=2, **changes)] * 2


def test_rounding_is_no_difference() -> None:
    other = ranks(2.0 + 1e-14, 1.0 - 1e-12, changes=[TensorState("weight", 0.1, 0.05 + 1e-12)])
    assert first_difference(ALONE, other, TOLERANCE) is None
    assert judge_ranks(ALONE, other, None, TOLERANCE) is None


def test_noise_of_a_parameter_without_a_gradient_is_no_difference() -> None:
    """The bias before a normalisation: Adam divides a rounding error by its own size."""
    bias = [TensorState("weight", 0.1, 0.05), TensorState("bias", 1e-12, 1e-12)]
    other = [bias[0], TensorState("bias", 1e-12, -1e-12)]
    one, two = [rank(2.0, changes=bias)], ranks(2.0, changes=other)
    one[0].start.parameters.append(TensorState("bias", 0.0, 0.0))
    for each in two:
        if len(each.start.parameters) == 1:
            each.start.parameters.append(TensorState("bias", 0.0, 0.0))
    assert first_difference(one, two, TOLERANCE) is None


@pytest.mark.parametrize(
    ("found", "cut", "cause", "text"),
    [
        (ranks(2.0, 1.1), ranks(2.0, 1.1), "loss over samples", "step 1: the loss is 1 and 1.1"),
        (ranks(1.9, 1.1), None, "loop", "step 0: the loss is 2 and 1.9 on 2 ranks"),
        (
            ranks(2.0, 1.0, samples=32),
            None,
            "batch size",
            "16 samples in one process and 32 on 2 ranks",
        ),
        (ranks(2.0, 1.0, rates=[0.2]), None, "learning rate", "is 0.1 and 0.2 on 2 ranks"),
        (ranks(2.0, 1.0, data={0: 7}), [rank(2.0, 1.0)], "data", "micro-batch 0 of rank 0"),
        (
            ranks(2.0, 1.0, changes=[TensorState("weight", 0.1, 0.06)]),
            None,
            *("update", "step 0: weight is updated differently on 2 ranks"),
        ),
        (
            ranks(2.0, changes=[TensorState("weight", 0.1, 0.06)], keeps_gradient="weight"),
            None,
            *("kept gradient", "keeps the gradient of weight without a copy"),
        ),
        (
            [*ranks(2.0, 1.0)[:1], rank(2.0, 1.0, changes=[TensorState("weight", 1, 1)])],
            None,
            *("update", "step 0: rank 1 has a different weight from rank 0"),
        ),
    ],
)
def test_the_first_difference_has_its_cause(
    found: list[WatchedRank], cut: list[WatchedRank] | None, cause: str, text: str
) -> None:
    finding = judge_ranks(ALONE, found, cut, TOLERANCE)
    assert finding is not None
    assert finding.cause == cause
    assert text in finding.text


def test_a_cut_that_matters_is_of_batch_norm_or_of_random_numbers() -> None:
    others, layers = ranks(1.9, 1.1), [rank(2.0, 1.0, batch_norm=["norm"])]
    finding = judge_ranks(layers, others, others, TOLERANCE)
    assert finding is not None
    assert finding.cause == "batch norm"
    assert judge_ranks([rank(2.0, 1.0, draws=True)], others, others, TOLERANCE) is None


def test_samples_may_be_put_together_otherwise_in_parts() -> None:
    """Graphs, whose atoms are numbered in their micro-batch, were taken for a loss over samples."""
    others = ranks(2.0, 1.0, data={0: 7})
    assert judge_ranks(ALONE, others, others, TOLERANCE) is None
    finding = judge_ranks(ALONE, ranks(2.0, 1.1, data={0: 7}), None, TOLERANCE)
    assert finding is not None and finding.cause == "data"
    others = ranks(2.0, 1.1, data={0: 7})
    finding = judge_ranks(ALONE, others, others, TOLERANCE)
    assert finding is not None and finding.cause == "loss over samples"


def test_what_is_not_repeatable_is_told_apart() -> None:
    other = [rank(2.0, 1.5)]
    for seeded, again, cause in [
        (ALONE, None, "generator"),
        (other, ALONE, "hash order"),
        (other, other, "time or file"),
    ]:
        finding = judge_repetition(ALONE, other, seeded, again, TOLERANCE)
        assert finding is not None
        assert finding.cause == cause
    assert judge_repetition(ALONE, ALONE, None, None, TOLERANCE) is None


def test_logged_times_are_not_compared() -> None:
    def logged(**values: float) -> list[WatchedRank]:
        return [ALONE[0]._replace(metrics={(0, name): value for name, value in values.items()})]

    findings, unsteady = judge_logs(
        logged(loss=2.0, seconds=1.0), logged(loss=2.0, seconds=1.1), logged(loss=1.8), TOLERANCE
    )
    assert [finding.cause for finding in findings] == ["log"]
    assert "run.log(loss=…) is 2 alone and 1.8" in findings[0].text
    assert unsteady == ["seconds"]
