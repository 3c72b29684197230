"""The schedule of injected faults is a pure function of its options."""

from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import UserError
from phalanx.run.fault_schedule import (
    INJECT,
    FaultInjection,
    fault_schedule,
    injections_of,
    parse_injection,
    parse_injections,
)

INJECTIONS = st.lists(
    st.builds(
        FaultInjection,
        kind=st.sampled_from(["kill", "stop", "terminate"]),
        mean_s=st.floats(0.1, 100),
        seed=st.integers(0, 5),
        pause_s=st.one_of(st.none(), st.floats(0.1, 10)),
    ),
    min_size=1,
    max_size=3,
)
MOST = 40
"""Faults that are looked at: a schedule of stops has no end."""


@given(injections=INJECTIONS, num_ranks=st.integers(1, 8), attempt=st.integers(0, 3))
def test_every_rank_has_the_same_faults_and_one_is_left(
    injections: list[FaultInjection], num_ranks: int, attempt: int
) -> None:
    first, second = (
        list(islice(fault_schedule(injections, num_ranks, attempt=attempt), MOST)) for _ in range(2)
    )
    assert first == second
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(first))
    lost = [fault.rank for fault in first if fault.kind != "stop" or fault.pause_s is None]
    assert len(set(lost)) == len(lost) < num_ranks
    dead = set[int]()
    for fault in first:
        assert fault.rank in set(range(num_ranks)) - dead
        if fault.kind != "stop" or fault.pause_s is None:
            dead.add(fault.rank)


@given(mean_s=st.floats(0.1, 100), seed=st.integers(0, 1000))
def test_faults_come_as_often_as_asked(mean_s: float, seed: int) -> None:
    stops = FaultInjection(kind="stop", mean_s=mean_s, seed=seed, pause_s=1.0)
    times = [0.0, *(fault.at_s for fault in islice(fault_schedule([stops], 4), 200))]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert min(gaps) > 0.49 * mean_s and max(gaps) < 1.51 * mean_s
    assert 0.85 * mean_s < times[-1] / 200 < 1.15 * mean_s


def test_seeds_and_starts_draw_others() -> None:
    kills = [parse_injection(f"kill:15:{seed}") for seed in (0, 1)]
    drawn = [tuple(fault_schedule([kill], 4, attempt=n)) for kill in kills for n in (0, 1)]
    assert len(set(drawn)) == 4
    assert [len(faults) for faults in drawn] == [3] * 4


def test_words_of_the_command_line() -> None:
    assert parse_injection("kill:15") == FaultInjection(kind="kill", mean_s=15, pause_s=None)
    assert parse_injection("stop:2.5:7") == FaultInjection(kind="stop", mean_s=2.5, seed=7)
    assert parse_injection("stop:2:7:0.5").pause_s == 0.5
    assert parse_injection("stop:2:7:never").is_deadly
    assert injections_of({}) == []
    assert [each.kind for each in injections_of({INJECT: "kill:1 stop:2"})] == ["kill", "stop"]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["crash:15"], "'crash' is not a fault: give KIND:SECONDS"),
        (["kill"], "give KIND:SECONDS"),
        (["kill:1:2:3:4"], "give KIND:SECONDS"),
        (["kill:often"], "must be a positive number, not 'often'"),
        (["kill:0"], "must be a positive number, not '0'"),
        (["kill:inf"], "must be a positive number, not 'inf'"),
        (["kill:15:x"], "the seed 'x' is not a whole number"),
        (["kill:15:0:2"], "only a stop takes a pause"),
        (["stop:15:0:-1"], "the pause of a stop must be a positive number"),
        (["kill:15", "kill:15:0"], "kill:15:0 is given twice"),
    ],
)
def test_what_is_no_fault_is_refused(texts: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_injections(texts)


def test_a_single_rank_is_never_struck() -> None:
    with pytest.raises(UserError, match="there is one rank, and the last living rank"):
        parse_injections(["kill:15"], 1)
    assert list(fault_schedule([parse_injection("kill:15")], 1)) == []
