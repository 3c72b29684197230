"""The timeline of a training with faults, from events that were made up."""

from collections.abc import Sequence

import pytest

from phalanx.records.events import Event, InjectedEvent, ReplacedEvent, StartedEvent, StepEvent
from phalanx.report.survival_timeline import make_timeline
from tests.report import made_events
from tests.report.survival.made_survival import (
    DEATHS,
    NOTICE_S,
    RANKS,
    RECOVERY_S,
    STEP_S,
    STEPS,
    Death,
    events_of,
    loss_of,
    sha_of,
)


def ranks_of(seed: int, deaths: Sequence[Death]) -> dict[int, list[Event]]:
    return {rank: events_of(rank, seed, deaths, sha_of(seed)) for rank in range(RANKS)}


def test_an_undisturbed_run_is_effective_all_of_its_time() -> None:
    timeline = make_timeline([ranks_of(0, ())])
    assert len(timeline.steps) == STEPS and not timeline.faults
    assert timeline.wall_s == pytest.approx(STEPS * STEP_S, abs=1e-5)
    assert timeline.effective_share == pytest.approx(1, abs=1e-5)
    assert [step.loss for step in timeline.steps] == [loss_of(n, 0) for n in range(STEPS)]


def test_what_a_death_costs() -> None:
    """Clocks of the ranks differ, and rank 0 is among the dead."""
    deaths = DEATHS[0]
    timeline = make_timeline([ranks_of(0, deaths)])
    lost_s = sum(death.cost_s for death in deaths)
    assert timeline.wall_s == pytest.approx(STEPS * STEP_S + lost_s, abs=1e-5)
    assert timeline.effective_s == pytest.approx(STEPS * STEP_S, abs=1e-5)
    assert [(fault.rank, fault.step) for fault in timeline.faults] == [(2, 20), (0, 40)]
    for fault, death in zip(timeline.faults, deaths, strict=True):
        assert fault.notice_s == pytest.approx(NOTICE_S, abs=1e-5)
        assert fault.recovery_s == pytest.approx(RECOVERY_S, abs=1e-5)
        assert fault.continue_s == pytest.approx(NOTICE_S + RECOVERY_S + STEP_S, abs=1e-5)
        assert fault.lost_s == pytest.approx(death.cost_s, abs=1e-5)
    assert all(step.loss == loss_of(step.step, 0) for step in timeline.steps)
    assert (timeline.num_starts, timeline.steps_again) == (1, 0)


def test_spares_that_take_places_are_counted_once() -> None:
    ranks = ranks_of(0, DEATHS[0])
    for rank in (0, 1):
        ranks[rank].append(
            ReplacedEvent(at_s=9.0, step=21, spares=[4], lost=[2], seconds=0.1 + 0.2 * rank)
        )
    assert make_timeline([ranks]).replaced_s == (pytest.approx(0.3),)
    assert make_timeline([ranks_of(0, ())]).replaced_s == ()


def test_two_deaths_in_a_step_are_counted_once() -> None:
    deaths = (Death(20, 2), Death(20, 1, 0.015))
    timeline = make_timeline([ranks_of(0, deaths)])
    lost_s = timeline.wall_s - STEPS * STEP_S
    assert sum(fault.lost_s for fault in timeline.faults) == pytest.approx(lost_s, abs=1e-5)
    assert timeline.effective_s == pytest.approx(STEPS * STEP_S, abs=1e-5)


def start_of(first: int, last: int, at_s: float, *others: Event) -> dict[int, list[Event]]:
    """Return the events of one rank that makes some steps from a Unix time on."""
    steps = [step(number, at_s + (number - first + 1) * STEP_S) for number in range(first, last)]
    return {0: [started(at_s), *steps, *others]}


def started(at_s: float) -> StartedEvent:
    return made_events.started(at_s=0.0, time_s=0.0, startup_s=at_s)


def step(number: int, at_s: float) -> StepEvent:
    return made_events.step(number, at_s=at_s, forward_s=STEP_S)


def test_steps_that_a_restart_makes_again_count_once() -> None:
    """Killed in step 10, 3 s to the new start, which goes on from the checkpoint of step 4."""
    death_s = 10.5 * STEP_S
    kill = InjectedEvent(at_s=death_s, time_s=death_s, kind="kill", rank=0, step=10)
    timeline = make_timeline([start_of(0, 10, 0.0, kill), start_of(4, 20, 3.0)])
    assert [made.step for made in timeline.steps] == list(range(20))
    assert (timeline.num_starts, timeline.steps_again) == (2, 6)
    assert timeline.effective_s == pytest.approx(20 * STEP_S, abs=1e-5)
    assert timeline.wall_s == pytest.approx(3.0 + 16 * STEP_S, abs=1e-5)
    (fault,) = timeline.faults
    assert fault.notice_s is None
    assert fault.continue_s == pytest.approx(3.0 + STEP_S - death_s, abs=1e-5)


def test_a_run_that_is_stopped_goes_on_where_its_next_start_does() -> None:
    """Asked in step 10, stopped after step 12, 3 s to the new start: nothing is made again."""
    asked_s = 10.5 * STEP_S
    asked = InjectedEvent(at_s=asked_s, time_s=asked_s, kind="terminate", rank=0, step=10)
    timeline = make_timeline([start_of(0, 13, 0.0, asked), start_of(13, 20, 3.0)])
    assert (timeline.num_starts, timeline.steps_again) == (2, 0)
    assert timeline.effective_s == pytest.approx(20 * STEP_S, abs=1e-5)
    (fault,) = timeline.faults
    assert fault.continue_s == pytest.approx(3.0 + STEP_S - asked_s, abs=1e-5)
    assert fault.lost_s == pytest.approx(3.0 - 13 * STEP_S, abs=1e-5)


def test_a_fault_after_the_last_step_has_no_known_cost() -> None:
    asked_s = 20 * STEP_S + 0.01
    asked = InjectedEvent(at_s=asked_s, time_s=asked_s, kind="terminate", rank=0, step=20)
    timeline = make_timeline([start_of(0, 20, 0.0, asked), {0: [started(3.0)]}])
    (fault,) = timeline.faults
    assert (fault.continue_s, timeline.effective_share) == (None, None)


def test_a_run_without_steps_has_no_times() -> None:
    timeline = make_timeline([{}])
    assert (timeline.steps, timeline.faults, timeline.effective_share) == ((), (), None)
