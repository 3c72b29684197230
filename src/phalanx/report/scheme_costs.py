"""Bytes and memory of a scheme's ranks beside their formulas. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from phalanx.report.format import UNKNOWN, amount
from phalanx.report.measures import RunMeasure
from phalanx.report.rank_measures import RankMeasure

EQUAL_WITHIN = 1e-3
"""Counted bytes this close to the formula are called equal: a broadcast at the end of an epoch, or
a smaller last batch, is in the count and not in the formula."""
MEBIBYTE = 2**20


class FormulaCheck(NamedTuple):
    """A counted or measured value, and that of the formula; None where unknown."""

    found: float | None
    formula: float | None

    @property
    def difference(self) -> float | None:
        """Relative, of what was found from the formula."""
        if self.found is None or self.formula is None:
            return None
        if not self.formula:
            return 0.0 if not self.found else float("inf")
        return self.found / self.formula - 1

    @property
    def is_equal(self) -> bool | None:
        return None if self.difference is None else abs(self.difference) <= EQUAL_WITHIN

    @property
    def found_mb(self) -> float | None:
        return None if self.found is None else self.found / MEBIBYTE

    @property
    def formula_mb(self) -> float | None:
        return None if self.formula is None else self.formula / MEBIBYTE


NOTHING = FormulaCheck(None, None)


def num_steps(run: RunMeasure) -> int:
    """Return the updates of the workers' finished epochs."""
    return max((rank.num_steps for rank in run.ranks.values()), default=0)


def roles(run: RunMeasure) -> dict[str, list[RankMeasure]]:
    """Return the ranks of each role: workers, servers."""
    found: dict[str, list[RankMeasure]] = {}
    for rank in run.ranks.values():
        found.setdefault(rank.role, []).append(rank)
    return found


def a_step(counted: int | None, formula: float | None, steps: int) -> FormulaCheck:
    """Return bytes per step beside the formula."""
    return FormulaCheck(None if counted is None or not steps else counted / steps, formula)


def sent(run: RunMeasure, rank: RankMeasure) -> FormulaCheck:
    return a_step(rank.sent_bytes, rank.expected.sent_bytes, num_steps(run))


def state(rank: RankMeasure) -> FormulaCheck:
    """Return measured and expected bytes of parameters, gradients and optimizer state."""
    memory, found = rank.memory, None
    if memory is not None:
        found = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    return FormulaCheck(found, rank.expected.state_bytes)


def costs(run: RunMeasure, ranks: Sequence[RankMeasure]) -> dict[str, Any]:
    """Return the columns of bytes and memory of some ranks: of the one that sends the most, and of
    the one that keeps the most."""
    checks, steps = [sent(run, rank) for rank in ranks], num_steps(run)
    most = max((c for c in checks if c.found is not None), key=lambda c: c.found or 0, default=None)
    known = [rank for rank in ranks if rank.memory]
    fullest = max(known, key=lambda rank: state(rank).found or 0.0, default=None)
    kept, busiest = state(fullest) if fullest else NOTHING, most or NOTHING
    formulas = (rank.expected.traffic_formula for rank in ranks)
    return {
        "num_ranks": len(ranks),
        "sent_mb": busiest.found_mb,
        "formula_mb": busiest.formula_mb,
        "words": f"{amount(most.found or 0.0)} {deviation_mark(checks)}" if most else "",
        "formula": next(filter(None, formulas), ""),
        "mark": deviation_mark(checks),
        "state_mb": kept.found_mb,
        "state_off": kept.difference,
        "_sent": checks,
        "_received": [
            a_step(rank.received_bytes, rank.expected.received_bytes, steps) for rank in ranks
        ],
        "_states": [state(rank) for rank in ranks],
        "_fullest": fullest,
        "_state": kept,
    }


def deviation_mark(checks: Sequence[FormulaCheck]) -> str:
    """Return `=` if every rank's value equals its formula, else the largest deviation."""
    known = [check for check in checks if check.difference is not None]
    if not known:
        return ""
    if all(check.is_equal for check in known):
        return "="
    worst = max((check.difference or 0.0 for check in known), key=abs)
    if worst == float("inf"):
        return "\N{NOT EQUAL TO} 0"
    return f"\N{NOT EQUAL TO} ({worst * 100:+.3g} %)".replace("-", "\N{MINUS SIGN}")


def range_of(checks: Sequence[FormulaCheck], name: str) -> str | None:
    """Return the bytes of ranks from the fewest to the most; None where nothing is known."""
    known = [value for check in checks if (value := getattr(check, name)) is not None]
    if not known:
        return None
    low, high = amount(min(known)), amount(max(known))
    return low if low == high else f"{low} {UNKNOWN} {high}"
