"""Findings as values, and the one formatter that puts them into sentences. Pure.

No superlative and no ratio stands in a sentence whose interval does not carry it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from phalanx.report.format import (
    first_few,
    joined,
    one_decimal,
    points,
    points_with_span,
    ratio,
    sentence,
    size,
)
from phalanx.report.statistics import (
    Holding,
    Interval,
    in_pairs,
    non_inferiority,
    paired_difference,
)


@dataclass(frozen=True, kw_only=True)
class FastestFinding:
    """The fastest of several candidates, and its rivals if there is no clear winner."""

    subject: str
    rivals: tuple[str, ...]  # not significantly slower
    n: int  # candidates
    noun: str  # of the candidates
    facts: str = ""  # time and rate of the subject
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Ratio of the subject's speed to that of another; its verdict is that of the interval."""

    subject: str
    against: str
    interval: Interval | None  # None with too few times to tell
    n: int = 1  # comparisons that the interval is corrected for
    facts: str = ""
    where: str = ""
    units: str = "epochs"
    same_within: float = 0.0  # relative; less than this is no difference

    @property
    def verdict(self) -> Literal["higher", "lower", "unclear"]:
        interval, bound = self.interval, 1 + self.same_within
        if interval is not None and interval.verdict(bound) == "higher":
            return "higher"
        if interval is not None and interval.verdict(1 / bound) == "lower":
            return "lower"
        return "unclear"


@dataclass(frozen=True, kw_only=True)
class AccuracyDifference:
    """Accuracy of the subject less that of the reference, seed by seed."""

    subject: str
    against: str
    verdict: Holding | Literal["diverged", "differs"]
    interval: Interval | None = None  # None with fewer than two seeds in common
    estimate: float | None = None  # mean over the seeds in common, None without any
    facts: str = ""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The number of candidates for which something holds, and those for which it does not."""

    num: int
    n: int
    noun: str
    holds: str  # the predicate
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimeShare:
    """Share of the wall-clock time that a training spent on steps that count."""

    subject: str
    estimate: float
    interval: Interval | None  # None of one run
    floor: float  # that the share is held to
    facts: str = ""

    @property
    def verdict(self) -> Literal["reaches", "is below", "unclear"]:
        interval = self.interval
        if interval is None or interval.holds(self.floor):
            return "unclear"
        return "reaches" if interval.low > self.floor else "is below"


@dataclass(frozen=True, kw_only=True)
class FastestBySize:
    """Ranges of sizes, increasing, with the fastest path of each; None if it is unclear."""

    ranges: tuple[tuple[str | None, int, int], ...]  # path, first and last size in bytes


def accuracy_difference(
    of: Mapping[int, float],
    base: Mapping[int, float],
    *,
    subject: str,
    against: str,
    comparisons: int = 1,
    margin: float | None = None,
    facts: str = "",
) -> AccuracyDifference:
    """Compare accuracies by seed.

    margin: of non-inferiority; None: the verdict is whether they differ.
    """
    interval = paired_difference(of, base, comparisons=comparisons)
    apart = interval is not None and interval.verdict(0) != "unclear"
    pairs = in_pairs(of, base)
    return AccuracyDifference(
        subject=subject,
        against=against,
        verdict=non_inferiority(interval, margin)
        if margin is not None
        else ("differs" if apart else "unclear"),
        interval=interval,
        estimate=fmean(own - other for own, other in pairs) if pairs else None,
        facts=facts,
    )


Finding = FastestFinding | Speed | AccuracyDifference | Agreement | FastestBySize | TimeShare | str
"""A string is a condition of the measurement, which nothing is computed from."""


def finding_text(finding: Finding) -> str:
    """Return the finding as a clause, without a capital and a full stop."""
    match finding:
        case FastestFinding():
            return _fastest(finding)
        case Speed():
            return _speed(finding)
        case AccuracyDifference():
            return _difference(finding)
        case Agreement():
            text = f"{finding.num} of {finding.n} {finding.noun} {finding.holds}"
            return f"{text}; not {joined(finding.exceptions)}" if finding.exceptions else text
        case TimeShare():
            return _time_share(finding)
        case FastestBySize():
            return _by_size(finding)
        case _:
            return finding


def headline_text(finding: Finding) -> str:
    """Return the finding as a headline: a capital, no full stop."""
    return sentence(finding_text(finding)).rstrip(".")


def _fastest(finding: FastestFinding) -> str:
    where = f"{finding.where} " if finding.where else ""
    if not finding.rivals:
        facts = f": {finding.facts}" if finding.facts else ""
        return f"{where}{finding.subject} is the fastest of {finding.n} {finding.noun}{facts}"
    return (
        f"{where}no clear winner among {finding.n} {finding.noun}: {finding.subject} was the "
        f"fastest ({finding.facts}), but {first_few(finding.rivals)} may be as fast"
    )


def _speed(finding: Speed) -> str:
    interval, against = finding.interval, finding.against
    if interval is None:
        text = f"cannot be compared with {against}: too few {finding.units}"
    elif finding.verdict == "higher":
        text = f"is {ratio(interval)} as fast as {against}"
    elif finding.verdict == "lower":
        text = f"is slower than {against}, which is {ratio(interval.inverse)} as fast"
    else:
        text = f"does not differ significantly from {against}: {ratio(interval)} as fast"
    start = f"{finding.where} {finding.subject}".strip()
    return f"{start} {text}" + (f" ({finding.facts})" if finding.facts else "")


def _difference(finding: AccuracyDifference) -> str:
    interval = finding.interval
    if interval is not None and interval.low == interval.high == 0:
        same = f"{finding.subject} has the same accuracy as {finding.against} with every seed"
        return same + (f": {finding.facts}" if finding.facts else "")
    change = points_with_span(interval) if interval else None
    if change is None and finding.estimate is not None:
        change = f"{points(finding.estimate)} points with one seed"
    words = {
        "holds": f"holds the accuracy of {finding.against}",
        "is below": f"is below {finding.against}",
        "unclear": f"does not differ significantly from {finding.against}"
        if interval
        else f"cannot be compared with {finding.against}",
        "diverged": "diverged",
        "differs": f"differs from {finding.against}",
    }[finding.verdict]
    facts = ", ".join(fact for fact in (change, finding.facts) if fact)
    return f"{finding.subject} {words}" + (f": {facts}" if facts else "")


def _time_share(finding: TimeShare) -> str:
    floor, interval = one_decimal(finding.floor), finding.interval
    share = one_decimal(finding.estimate)
    if interval is None:
        told = f"in one run, which is too few to say whether it reaches {floor}"
    else:
        share += f" ({one_decimal(interval.low)} to {one_decimal(interval.high)})"
        told = {
            "reaches": f"which reaches {floor}",
            "is below": f"which is below {floor}",
            "unclear": f"and it is unclear whether it reaches {floor}",
        }[finding.verdict]
    facts = f" ({finding.facts})" if finding.facts else ""
    return f"{finding.subject}: {share} of the time went into steps that count, {told}{facts}"


def _by_size(finding: FastestBySize) -> str:
    if len(finding.ranges) == 1:
        path = finding.ranges[0][0]
        return (
            f"{path} is the fastest at every size"
            if path
            else "no path is clearly the fastest at any size"
        )
    known = [f"{path} {_sizes(*ends)}" for path, *ends in finding.ranges if path]
    unknown = [_sizes(*ends) for path, *ends in finding.ranges if not path]
    text = f"the fastest is {joined(known)}"
    return f"{text}; {joined(unknown)} no path is clearly the fastest" if unknown else text


def _sizes(low: int, high: int) -> str:
    return f"at {size(low)}" if low == high else f"from {size(low)} to {size(high)}"
