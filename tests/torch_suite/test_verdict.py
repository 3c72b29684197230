"""What is made of the results of PyTorch's suite; the suite itself: `make test-torch-suite`."""

from tests.torch_suite.run import BACKENDS, read_known
from tests.torch_suite.verdict import Known, Outcome, RankOutcome, combine, make_table, unexpected

KNOWN = Known(unfit={"test_cuda": "wants a GPU"}, failing={"test_words": "wants words"})
OUTCOMES = {
    "test_sum": Outcome("pass"),
    "test_cuda": Outcome("fail", "IndexError: list index out of range"),
    "test_words": Outcome("fail", "AssertionError: other words"),
    "test_amp": Outcome("skip", "Need at least 2 CUDA devices"),
    "test_four": Outcome("skip", "Skipped due to small world size."),
    "test_issue": Outcome("skip", "https://github.com/pytorch/pytorch/issues/1"),
}


def test_the_earliest_failure_is_the_reason() -> None:
    """A rank that fails ends, and its peers fail because it is gone: 17 of 76 failed so."""
    ranks = [
        RankOutcome(3.0, "fail", "its process is gone"),
        RankOutcome(1.0, "pass", ""),
        RankOutcome(2.0, "fail", "IndexError"),
    ]
    assert combine(ranks) == ("fail", "IndexError")
    assert combine(ranks[1:2] * 3) == ("pass", "")
    skip = RankOutcome(1.0, "skip", "no GPU")
    assert combine([skip] * 3) == ("skip", "no GPU")
    assert combine([skip, ranks[1]]) == ("pass", ""), "a rank had a part in it"


def test_what_is_listed_is_expected_and_nothing_else() -> None:
    assert unexpected(OUTCOMES, KNOWN) == []
    assert unexpected(OUTCOMES, Known({}, KNOWN.failing)) == [
        "test_cuda fails: IndexError: list index out of range"
    ]
    mended = {**OUTCOMES, "test_words": Outcome("pass")}
    assert unexpected(mended, KNOWN) == ["test_words passes"]


def test_the_table_fits_80_columns_and_gives_each_failure_its_reason() -> None:
    other = {**OUTCOMES, "test_cuda": Outcome("pass"), "test_sum": Outcome("fail", "E " * 60)}
    lines = make_table({"mpi": OUTCOMES, "gloo": other}, {"mpi": KNOWN, "gloo": KNOWN})
    assert lines[:8] == [
        "                             mpi    gloo",
        "pass                           1       1",
        "fail                           1       2",
        "needs more than is here        1       0",
        "skipped: no GPU                1       1",
        "skipped: too few ranks         1       1",
        "skipped: other                 1       1",
        "tests                          6       6",
    ]
    assert lines[8:11] == ["", "fail, mpi:", "  test_words"]
    assert lines[11:13] == ["    wants words", ""]
    assert lines[-3:] == ["needs more than is here:", "  test_cuda", "    wants a GPU"]
    assert max(map(len, lines)) <= 80


def test_every_known_failure_has_a_reason() -> None:
    known = read_known()
    assert set(known) == set(BACKENDS)
    for lists in known.values():
        assert all(lists.unfit.values()) and all(lists.failing.values())
        assert not lists.unfit.keys() & lists.failing.keys()
