"""Published tables: the plan is worth what it is better than rules that know nothing."""

from statistics import fmean

import pytest

from phalanx.plan.published import CaseError, left_out, predicted_rows, read_series
from phalanx.plan.validation import read_measured
from tests.plan.bounds import FILE, by_other_tables


@pytest.fixture(scope="module")
def cases() -> list[CaseError]:
    return predicted_rows()


def test_one_row_over_the_network_beats_rules_that_know_nothing(cases: list[CaseError]) -> None:
    later = [(case, case.with_row.median) for case in cases if case.with_row is not None]
    assert len(later) > 45
    with_row = fmean(abs(told - case.measured) for case, told in later)
    last = fmean(abs(case.last_row - case.measured) for case, _ in later)
    assert with_row <= 3.0
    assert with_row <= 0.75 * last


def test_one_node_alone_beats_perfect_scaling(cases: list[CaseError]) -> None:
    assert len(cases) > 90
    told = fmean(abs(case.told.median - case.measured) for case in cases)
    assert told < 0.65 * fmean(abs(case.perfect - case.measured) for case in cases)


def test_ranges_hold_as_many_rows_as_they_claim(cases: list[CaseError]) -> None:
    inside = fmean(case.told.low <= case.measured <= case.told.high for case in cases)
    assert 0.85 <= inside <= 0.97
    assert fmean(case.told.high - case.told.low for case in cases) <= 30


def test_ranges_hold_rows_of_tables_that_their_bound_was_not_chosen_on() -> None:
    """Made again: python -m tests.plan.bounds"""
    table, judged = by_other_tables()
    assert fmean(each.is_inside for each in judged) >= 0.85
    assert fmean(each.width for each in judged) <= 30
    assert read_measured([FILE]).tables == [table]


def test_every_table_is_predicted_or_left_out_with_a_reason(cases: list[CaseError]) -> None:
    names = {series.table for series in read_series()}
    assert names == {case.series.table for case in cases}
    assert not names & set(left_out())
