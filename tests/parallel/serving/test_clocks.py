"""Who may go on, and how old the weights were: any order in which workers may come."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.parallel.serving.clocks import Clocks


def in_any_order(
    clocks: Clocks, workers: int, num_steps: int, choose
) -> tuple[list[list[int]], list[int]]:
    """Workers push in an order that `choose` decides; after each push every worker's steps done,
    and how many updates of others each push came after."""
    done, free = [0] * workers, set(range(workers))
    histories, updates_seen, updates, staleness = [], [0] * workers, 0, []
    while free:
        worker = choose(sorted(free))
        assert worker in clocks.awaited
        free.remove(worker)
        staleness.append(updates - updates_seen[worker])
        updates += 1
        done[worker] += 1
        for released in clocks.push(worker):
            updates_seen[released] = updates
            if done[released] < num_steps:
                free.add(released)
        histories.append(list(done))
    return histories, staleness


@given(
    st.integers(1, 5),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(0, 4)),
    st.randoms(use_true_random=False),
)
def test_nobody_is_further_ahead_than_allowed_and_all_come_to_the_end(
    workers: int, num_steps: int, max_lead: int | None, random
) -> None:
    clocks = Clocks(workers, num_steps, max_lead)
    histories, staleness = in_any_order(clocks, workers, num_steps, random.choice)
    assert histories[-1] == [num_steps] * workers
    assert clocks.awaited == []
    if max_lead is not None:
        # A step that is being made counts when it is done: one more than at its beginning.
        assert max(max(done) - min(done) for done in histories) <= max_lead + 1
        assert max(clocks.leads, default=0) <= max_lead
    assert clocks.staleness == Counter(staleness)
    assert sum(clocks.staleness.values()) == workers * num_steps
    assert sum(clocks.leads.values()) == workers * (num_steps - 1)


def test_with_no_lead_all_begin_every_step_together() -> None:
    clocks = Clocks(3, 2, 0)
    assert clocks.push(1) == []
    assert clocks.push(0) == []
    assert clocks.awaited == [2]
    assert clocks.push(2) == [0, 1, 2]
    assert clocks.leads == {0: 3}
    assert clocks.staleness == {0: 1, 1: 1, 2: 1}, "in step, yet of weights that others changed"


def test_without_a_bound_a_worker_waits_for_the_others_only_at_the_end() -> None:
    clocks = Clocks(2, 3, None)
    assert clocks.push(0) == [0]
    assert clocks.push(0) == [0]
    assert clocks.push(0) == []
    assert clocks.leads == {1: 1, 2: 1}
    assert clocks.push(1) == [1]
    assert clocks.push(1) == [1]
    assert clocks.push(1) == [0, 1]
    assert clocks.staleness == {0: 5, 3: 1}


@pytest.mark.parametrize("max_lead", [0, 2, None])
def test_a_step_without_samples_counts_as_a_step_and_not_as_an_update(
    max_lead: int | None,
) -> None:
    clocks = Clocks(2, 1, max_lead)
    clocks.push(0, writes=False)
    assert clocks.push(1) == [0, 1]
    assert clocks.staleness == {0: 1}
