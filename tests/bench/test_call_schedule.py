"""What is measured, in which order, how often."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from phalanx.bench.call_schedule import FEWEST_CALLS, MOST_CALLS, cases, schedule, turns


def test_sizes_are_rounded_up_to_whole_parts_and_met_once() -> None:
    made = cases(["all_reduce", "all_gather"], [4, 8, 10, 12], itemsize=4, ranks=3)
    assert [(case.collective, case.count, case.num_bytes) for case in made] == [
        ("all_reduce", 1, 4),
        ("all_reduce", 2, 8),
        ("all_reduce", 3, 12),
        ("all_gather", 3, 12),
    ]


def test_a_barrier_has_no_size() -> None:
    (case,) = cases(["barrier"], [4, 1024], itemsize=4, ranks=2)
    assert (case.count, case.num_bytes) == (0, 0)


def test_every_path_gets_the_same_time() -> None:
    found = schedule({"fast": 1e-3, "slow": 4e-3}, budget_s=1.6, repeats=None)
    assert found.rounds == 8
    assert found.calls == {"fast": 50, "slow": 25}


def test_fast_paths_are_not_called_without_end_and_slow_ones_often_enough() -> None:
    found = schedule({"fast": 1e-6, "slow": 10.0}, budget_s=1.0, repeats=None)
    assert found.rounds * found.calls["fast"] == MOST_CALLS
    assert found.rounds * found.calls["slow"] == FEWEST_CALLS


@given(repeats=st.integers(1, 1000))
def test_repeats_are_made_in_a_few_rounds(repeats: int) -> None:
    found = schedule({"a": 1.0, "b": 2.0}, budget_s=0.0, repeats=repeats)
    for calls in found.calls.values():
        assert repeats <= found.rounds * calls < repeats + found.rounds


def test_rounds_go_over_all_paths_and_begin_with_another_each_time() -> None:
    order = list(turns(["a", "b", "c"], 3))
    assert [path for number, path in order if number == 0] == ["a", "b", "c"]
    assert [path for number, path in order if number == 1] == ["b", "c", "a"]
    assert Counter(path for _, path in order) == {"a": 3, "b": 3, "c": 3}


def test_nothing_to_measure() -> None:
    found = schedule({}, budget_s=1.0, repeats=None)
    assert list(turns([], found.rounds)) == []
