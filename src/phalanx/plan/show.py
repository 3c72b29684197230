"""Plans as lines of a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.plan.predict import WORDS
from phalanx.records.plan import Plan, PlannedRanks

HEADER = " ranks nodes  step     speed-up           the whole node hours  sent    memory"
PAYS = 1.6
"""Gain of a doubling of the ranks that is called worth it."""


def plan_lines(plan: Plan) -> list[str]:
    """Return how a plan was calibrated, a row per number of ranks, and what is unsure."""
    lines, last = [], plan.rows[-1]
    if plan.disturbed is not None:
        lines.append(
            f"calibration disturbed: equal steps differ by ± {100 * plan.disturbed:.0f} %, and "
            "ranges are as wide; measure again on a quiet machine"
        )
    if plan.extrapolated:
        lines.append(f"EXTRAPOLATED: {'; '.join(plan.extrapolated)}")
    lines.append(f"calibrated on {plan.calibrated}")
    if plan.machine is not None:
        lines.append(plan.machine)
    lines.append(f"{plan.options}, batches of {plan.global_batch}, {_epochs(plan.epochs)}")
    lines += ["", HEADER, *(_row(plan, each) for each in plan.rows), "", _worth(plan.rows)]
    if plan.helps:
        gains = ", ".join(f"{words} {gain:.2f} ×" for words, gain in plan.helps.items())
        lines.append(f"most help at {last.ranks} ranks: {gains}")
    if last.unsure:
        three = ", ".join(
            f"{WORDS[name]} (±{100 * half:.0f} %)" for name, half in list(last.unsure.items())[:3]
        )
        lines.append(f"not sure at {last.ranks} ranks: {three}")
    if plan.narrows:
        lines.append(f"mends most: {plan.narrows}")
    return lines + (layout_lines(plan) if plan.layouts else [])


def layout_lines(plan: Plan, most: int = 12) -> list[str]:
    """Return the layouts of the most ranks, the best first; those of the first three with the
    command that tries each."""
    ranks = plan.rows[-1].ranks
    lines = ["", f"layouts of {ranks} ranks, best first", " step (90 % range)         memory"]
    for each in plan.layouts[:most]:
        low, high = _time(each.step_s.low), _time(each.step_s.high)
        span = f"{_time(each.step_s.median)} ({low}–{high})"
        memory = "" if each.peak_bytes is None else _bytes(each.peak_bytes)
        lines.append(f" {span:25s} {memory:9s} {each.options}")
        if each.too_large_bytes:
            lines.append(f"   does not fit: {_bytes(each.too_large_bytes)} too much for a rank")
    fits = [each for each in plan.layouts if not each.too_large_bytes]
    lines += [f"to try: phalanx train {each.options} --ranks {ranks}" for each in fits[:3]]
    if not fits:
        least = min(plan.layouts, key=lambda each: each.too_large_bytes)
        lines.append(
            f"nothing fits: {least.options} comes nearest and lacks "
            f"{_bytes(least.too_large_bytes)} a rank: more ranks, or more memory"
        )
    reasons: dict[str, list[str]] = {}
    for name, why in plan.left_out.items():
        reasons.setdefault(why, []).append(name)
    return lines + [f"left out: {'; '.join(some)}: {why}" for why, some in reasons.items()]


def budget_line(plan: Plan, node_hours: float) -> str:
    """Return what a number of node hours is enough for."""
    fits = [each for each in plan.rows if each.node_hours <= node_hours]
    if not fits:
        least = min(plan.rows, key=lambda each: each.node_hours)
        return (
            f"{node_hours:g} node hours are not enough: {_epochs(plan.epochs)} take "
            f"{least.node_hours:.3g} on {least.ranks} ranks, which need least"
        )
    best = min(fits, key=lambda each: each.whole_s.median)
    return (
        f"{node_hours:g} node hours are enough for {best.ranks} ranks: {_epochs(plan.epochs)} in "
        f"{_time(best.whole_s.median)} for {best.node_hours:.3g}"
    )


def _epochs(number: int) -> str:
    return "1 epoch" if number == 1 else f"{number} epochs"


def _row(plan: Plan, each: PlannedRanks) -> str:
    speed = each.speed_up
    span = f"{speed.median:.3g} ({speed.low:.3g}–{speed.high:.3g})"
    memory = each.peak_bytes or each.state_bytes or 0.0
    row = (
        f"{each.ranks:6d} {each.nodes:5d}  {_time(each.step_s.median):7s}  {span:18s} "
        f"{_time(each.whole_s.median):9s} {each.node_hours:10.2g}  "
        f"{'?' if each.sent_bytes is None else _bytes(each.sent_bytes):7s} {_bytes(memory)}"
    )
    if plan.machine_nodes is not None and each.nodes > plan.machine_nodes:
        row += f"\n        more nodes than it has ({plan.machine_nodes}); as if it had them"
    if plan.memory_bytes is not None and memory > plan.memory_bytes:
        row += f"\n        does not fit: {_bytes(memory - plan.memory_bytes)} too much for a rank"
    if each.cost is not None:
        row += f"\n        {each.cost:.2f} {plan.currency}"
    return row


def _worth(rows: Sequence[PlannedRanks]) -> str:
    """Return up to which rank count a doubling brings `PAYS` or more."""
    last = rows[0]
    for each in rows[1:]:
        doublings = each.ranks / last.ranks / 2
        gain = last.step_s.median / each.step_s.median
        if gain < PAYS * doublings:
            first = f"worth it: to {last.ranks} ranks every doubling brings {PAYS:g} or more; "
            if last is rows[0]:
                first = f"not worth it: {each.ranks} ranks are {gain:.2f} × as fast; "
            return f"{first}at {each.ranks} a step is {_shares(each)}"
        last = each
    return f"worth it: every doubling to {last.ranks} ranks brings {PAYS:g} or more"


PARTS: Mapping[str, str] = {
    "compute_s": "compute",
    "waiting_s": "waiting for the slowest rank",
    "exposed_s": "messages and bubbles that nothing hides",
}
"""Parts of a step in words."""


def _shares(each: PlannedRanks) -> str:
    whole = each.parts["step_s"]
    return ", ".join(f"{100 * each.parts[n] / whole:.0f} % {words}" for n, words in PARTS.items())


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _bytes(number: float) -> str:
    return f"{number / 1e6:.3g} MB" if number < 1e9 else f"{number / 2**30:.3g} GiB"
