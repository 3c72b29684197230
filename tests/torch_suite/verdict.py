"""What the suite's results mean: the outcome of a test, what was unexpected, the table. Pure."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

COLUMNS = 80
Result = Literal["pass", "fail", "skip"]


class RankOutcome(NamedTuple):
    """How a test has ended on one rank."""

    time_s: float
    """Moment of the end, by a clock that all ranks share."""
    result: Result
    reason: str


class Outcome(NamedTuple):
    """How a test has ended."""

    result: Result
    reason: str = ""


class Known(NamedTuple):
    """Failures that are known, with their reasons, by the name of the test."""

    unfit: Mapping[str, str]
    """Tests that fail on every backend, as they need more than is here; not counted as failures."""
    failing: Mapping[str, str]
    """Tests that one backend fails."""


def combine(ranks: Sequence[RankOutcome]) -> Outcome:
    """Return the outcome of a test that all ranks have ended, or those that failed first.

    The earliest failure gives the reason; its peers fail because that rank has ended."""
    failures = sorted(rank for rank in ranks if rank.result == "fail")
    if failures:
        return Outcome("fail", failures[0].reason)
    skips = [rank.reason for rank in ranks if rank.result == "skip"]
    return Outcome("skip", skips[0]) if len(skips) == len(ranks) else Outcome("pass")


def unexpected(outcomes: Mapping[str, Outcome], known: Known) -> list[str]:
    """Return a line for each test that fails and is not known to, or is known to and passes."""
    listed = known.unfit.keys() | known.failing.keys()
    return [
        f"{test} fails: {first_line(outcome)}" if outcome.result == "fail" else f"{test} passes"
        for test, outcome in outcomes.items()
        if outcome.result == ("pass" if test in listed else "fail")
    ]


def first_line(outcome: Outcome) -> str:
    return next(iter(outcome.reason.strip().splitlines()), "")


def row_of(test: str, outcome: Outcome, known: Known) -> str:
    """Return the row of the table in which a test is counted."""
    if outcome.result == "fail":
        return "needs more than is here" if test in known.unfit else "fail"
    if outcome.result == "pass":
        return "pass"
    if "CUDA" in outcome.reason:
        return "skipped: no GPU"
    return "skipped: too few ranks" if "world size" in outcome.reason else "skipped: other"


ROWS = (
    *("pass", "fail", "needs more than is here"),
    *("skipped: no GPU", "skipped: too few ranks", "skipped: other"),
)


def make_table(
    outcomes: Mapping[str, Mapping[str, Outcome]], known: Mapping[str, Known]
) -> list[str]:
    """Return the lines of the table, a column per backend, and of the failures below it."""
    counts = [
        Counter(row_of(test, outcome, known[backend]) for test, outcome in found.items())
        for backend, found in outcomes.items()
    ]
    lines = [f"{'':24}" + "".join(f"{backend:>8}" for backend in outcomes)]
    lines += [f"{row:24}" + "".join(f"{count[row]:8}" for count in counts) for row in ROWS]
    lines += [f"{'tests':24}" + "".join(f"{count.total():8}" for count in counts)]
    unfit: dict[str, str] = {}
    for backend, found in outcomes.items():
        failed = {test: first_line(o) for test, o in found.items() if o.result == "fail"}
        lists = known[backend]
        reasons = {**failed, **lists.failing}
        lines += _listed(f"fail, {backend}", failed.keys() - lists.unfit.keys(), reasons)
        unfit.update({test: lists.unfit[test] for test in failed.keys() & lists.unfit.keys()})
    return lines + _listed("needs more than is here", unfit, unfit)


def _listed(title: str, tests: Iterable[str], reasons: Mapping[str, str]) -> list[str]:
    """Return the lines of a list of tests, each with its reason."""
    lines = []
    for test in sorted(tests):
        lines += [f"  {test}", *textwrap.wrap(reasons[test], COLUMNS - 4)]
    texts = [line if line.startswith("  ") else f"    {line}" for line in lines]
    return ["", f"{title}:", *texts] if texts else []
