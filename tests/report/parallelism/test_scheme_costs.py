"""What the records say beyond times: losses by step, bytes, memory, pipelines."""

from collections.abc import Sequence

import pytest

from phalanx.records.events import ActionEvent
from phalanx.report.measures import RunMeasure
from phalanx.report.parallelism_rows import (
    FormulaCheck,
    bubble,
    drawn_step,
    losses,
    num_steps,
    roles,
    sent,
    state,
)
from phalanx.report.rank_measures import RankMeasure, measure_rank
from tests.report.made_events import started
from tests.report.parallelism.made_parallelism import (
    EPOCHS,
    FULL_BYTES,
    MICRO_BATCHES,
    STEPS,
    Made,
    events_of,
    loss_at,
)


def run_of(made: Made) -> RunMeasure:
    ranks = {rank: measure_rank(events_of(made, rank), rank=rank) for rank in range(made.ranks)}
    return RunMeasure(name=made.name, status="completed", ranks=ranks)


RING = Made(name="ring", strategy="mpi", ranks=3, sent_bytes=900, formula_bytes=900.0)


def test_bytes_are_those_of_a_step() -> None:
    run = run_of(RING)
    pairs = [sent(run, rank) for rank in run.ranks.values()]
    assert [pair.found for pair in pairs] == [900.0] * 3
    assert all(pair.is_equal for pair in pairs)


def test_a_server_is_counted_by_the_steps_of_its_workers() -> None:
    run = run_of(Made(name="s", strategy="server", ranks=3, servers=1, sent_bytes=700))
    assert list(roles(run)) == ["server", "worker"]
    assert num_steps(run) == STEPS * EPOCHS
    assert sent(run, run.ranks[0]).found == 700.0


@pytest.mark.parametrize(
    ("pair", "difference", "is_equal"),
    [
        (FormulaCheck(found=110, formula=100), 0.1, False),
        (FormulaCheck(found=100.05, formula=100), 0.0005, True),
        (FormulaCheck(found=0, formula=0), 0.0, True),
        (FormulaCheck(found=1, formula=0), float("inf"), False),
        (FormulaCheck(found=None, formula=100), None, None),
        (FormulaCheck(found=1, formula=None), None, None),
    ],
)
def test_what_was_found_beside_the_formula(
    pair: FormulaCheck, difference: float | None, is_equal: bool | None
) -> None:
    assert pair.difference == (None if difference is None else pytest.approx(difference))
    assert pair.is_equal is is_equal


def test_memory_is_parameters_gradients_and_state() -> None:
    assert state(run_of(RING).ranks[0]).found == 4 * FULL_BYTES
    assert state(RankMeasure()).found is None


def test_losses_are_over_all_ranks() -> None:
    found = losses(list(run_of(RING).ranks.values()), most=1_000)
    assert [loss["step"] for loss in found] == list(range(1, STEPS * EPOCHS + 1))
    assert [loss["loss"] for loss in found] == pytest.approx(
        [loss_at(RING, step) for step in range(STEPS * EPOCHS)]
    )
    assert found[-1]["trained_s"] == pytest.approx(RING.step_s * STEPS * EPOCHS)


def test_neighbouring_steps_are_averaged() -> None:
    found = losses(list(run_of(RING).ranks.values()), most=30)
    assert len(found) == 30
    assert found[0]["step"] == 2
    assert found[0]["loss"] == pytest.approx((loss_at(RING, 0) + loss_at(RING, 1)) / 2)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bubble_of_gpipe_is_that_of_the_formula(ranks: int) -> None:
    made = Made(name="p", strategy="pipeline", ranks=ranks, mesh={"pp": ranks}, bubble=0.1)
    step = drawn_step(run_of(made).ranks.values())
    assert bubble(step) == pytest.approx((ranks - 1) / (MICRO_BATCHES + ranks - 1))


def test_of_several_pipelines_the_first_is_drawn() -> None:
    ranks = [
        placed(rank, {"pp": pp, "dp": dp}, actions(rank))
        for rank, (pp, dp) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)])
    ]
    step = drawn_step(ranks)
    assert [(row["stage"], row["rank"]) for row in step] == [(0, 0), (2, 2)]


def test_a_step_that_a_rank_did_not_record_is_left_out() -> None:
    ranks = [
        placed(0, {"pp": 0}, actions(0)),
        placed(1, {"pp": 1}, actions(1, step=1)),
    ]
    assert drawn_step(ranks) == drawn_step([RankMeasure()]) == []


def placed(rank: int, place: dict[str, int], done: Sequence[ActionEvent]) -> RankMeasure:
    return RankMeasure(rank=rank, events=[started(rank, coordinates=place), *done])


def actions(stage: int, step: int = 0) -> Sequence[ActionEvent]:
    return [
        ActionEvent(
            at_s=1.0,
            step=step,
            stage=stage,
            micro_batch=0,
            kind="forward",
            began_s=1.0,
            ended_s=2.0,
        )
    ]
