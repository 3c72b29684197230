"""Ranks that keep others waiting: who is late, and who never is."""

from pathlib import Path

import pytest

from phalanx.errors import UserError
from phalanx.jobs.patience import FRESH_S, MARGIN_S, RankWait, check_patience, late_ranks
from phalanx.jobs.state_clock import MAX_GAP_S, StateClock
from phalanx.records.wait_reports import WaitReport, read_reports, remove_reports, write_report

NOW, PATIENCE_S = 1000.0, 10.0
LIMIT_S = PATIENCE_S + MARGIN_S


def wait(
    rank: int, waited_s: float, *, silent_s: float, group: int = 0, is_over: bool = False
) -> RankWait:
    """Return the state of a rank that last waited `silent_s` ago."""
    report = WaitReport(
        rank=rank,
        group=group,
        hostname="n0",
        process_id=100 + rank,
        number=1,
        waited_s=waited_s,
        is_over=is_over,
    )
    return RankWait(report, NOW - silent_s, NOW - silent_s)


def late(*waits: RankWait) -> list[int]:
    return late_ranks({each.report.rank: each for each in waits}, NOW, PATIENCE_S)


def test_a_rank_that_does_not_wait_is_late_when_others_have_waited_for_it() -> None:
    waiting = wait(0, LIMIT_S, silent_s=0.1)
    assert late(waiting, wait(1, 0.0, silent_s=LIMIT_S + 0.1), wait(2, 0.3, silent_s=0.1)) == [1]
    assert late(waiting, wait(1, 0.0, silent_s=LIMIT_S - 0.1)) == []


def test_a_rank_that_stopped_while_it_waited_is_late_too() -> None:
    stopped = wait(1, 5.0, silent_s=LIMIT_S + 1)
    assert late(wait(0, LIMIT_S, silent_s=0.1), stopped) == [1]


def test_nobody_is_late_while_nobody_has_waited_for_long() -> None:
    computing = wait(1, 0.0, silent_s=500.0)
    assert late(wait(0, LIMIT_S - 0.1, silent_s=0.1), computing) == []
    assert late(computing, wait(2, 0.0, silent_s=500.0)) == []


def test_a_rank_that_reports_no_more_keeps_nobody_to_account() -> None:
    """All ranks were stopped, and one has not heard of it yet."""
    assert late(wait(0, 50.0, silent_s=FRESH_S + 0.1), wait(1, 0.0, silent_s=500.0)) == []


def test_ranks_of_another_run_and_those_at_their_end_are_not_late() -> None:
    waiting = wait(0, LIMIT_S, silent_s=0.1)
    assert late(waiting, wait(1, 0.0, silent_s=500.0, group=1)) == []
    assert late(waiting, wait(1, 0.0, silent_s=500.0, is_over=True)) == []


def test_a_wait_is_timed_while_it_is_the_same_and_the_process_runs() -> None:
    clock = StateClock()
    seconds = [clock.see("a", 10 + 0.25 * look) for look in range(4)]
    assert seconds == [0.0, 0.25, 0.5, 0.75]
    assert clock.see("a", 70.75) == 0.75 + MAX_GAP_S  # it was stopped itself
    assert clock.see("b", 71.0) == 0.0
    assert clock.see("b", 71.25) == 0.25
    assert clock.see(None, 71.5) == 0.0


def test_reports_are_read_back_and_removed(tmp_path: Path) -> None:
    reports = [wait(rank, 0.5, silent_s=0.0).report for rank in range(3)]
    for report in reports:
        write_report(tmp_path, report)
    (tmp_path / "waits-7.json").write_bytes(b'{"rank": 7')  # a part of one
    assert sorted(read_reports(tmp_path), key=lambda report: report.rank) == reports
    remove_reports(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("patience_s", "survive", "words"),
    [(0.0, True, "above 0"), (float("nan"), True, "above 0"), (5.0, False, "add --survive")],
)
def test_a_patience_that_cannot_be_is_refused(patience_s: float, survive: bool, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_patience(patience_s, survive=survive)
    check_patience(None, survive=False)
