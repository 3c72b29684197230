"""Sentences about a plan, the same on the terminal and on the page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from phalanx.records.plan import PAYS, Plan, PlannedRange

UNKNOWNS: Mapping[str, str] = {
    "run": "how much runs of the program differ",
    "processor": "the processor",
    "hidden": "how much of the sums the backward pass hides",
    "bandwidth": "the bandwidth that sums reach",
    "latency": "the latency of the network",
    "contention": "how much ranks of a node slow each other down",
    "engine": "what the engine takes beside the passes",
}
"""Unknowns of a prediction, in words."""
PARTS: Mapping[str, str] = {
    "compute_s": "compute",
    "waiting_s": "waiting for the slowest rank",
    "exposed_s": "messages and bubbles that nothing hides",
}
"""Parts of a step, in words."""
TRIED = 3
"""Layouts that are worth a trial: a plan names no single one."""


def doubts_of(plan: Plan) -> list[str]:
    """Return what is to be said before any figure."""
    found, signs = list[str](), list[str]()
    if plan.core_share is not None:
        signs.append(f"others had the cores for {100 * (1 - plan.core_share):.0f} % of the time")
    if plan.disturbed is not None:
        signs.append(f"equal steps differ by ± {100 * plan.disturbed:.0f} %")
    if signs:
        what = "; ".join(signs)
        found.append(
            f"calibration disturbed: {what}; ranges are as wide; measure again on a quiet machine"
        )
    if plan.extrapolated:
        found.append(f"EXTRAPOLATED: {'; '.join(plan.extrapolated)}")
    return found


def findings_of(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what a plan says, each with what it is about."""
    last, (at, less) = plan.rows[-1], plan.worth
    paid = f"{PAYS:g} or more, by the medians"
    if less is None:
        yield "worth it", f"doublings up to {at.ranks} ranks bring {paid}"
    else:
        shares = [(words, less.parts[n] / less.parts["step_s"]) for n, words in PARTS.items()]
        parts = ", ".join(f"{100 * share:.0f} % {words}" for words, share in shares)
        rest = f"at {less.ranks} a step is {parts}"
        if at is plan.rows[0]:
            gain = at.step_s.median / less.step_s.median
            yield "not worth it", f"{less.ranks} ranks are {gain:.2f} × as fast; {rest}"
        else:
            yield "worth it", f"doublings up to {at.ranks} ranks bring {paid}; {rest}"
    if plan.helps:
        gains = [
            f"{words} {help_.gain:.2f} ×"
            + f" (then worth it to {help_.pays_to})" * (help_.pays_to is not None)
            for words, help_ in plan.helps.items()
        ]
        yield f"most help at {last.ranks} ranks", f"{', '.join(gains)}, by the median"
    if last.unsure:
        three = [f"{UNKNOWNS[n]} (±{100 * half:.0f} %)" for n, half in last.unsure.items()][:3]
        yield f"not sure at {last.ranks} ranks", ", ".join(three)
    if plan.narrows:
        yield "mends most", plan.narrows
    if fit := [each for each in plan.layouts if not each.too_large_bytes]:
        near = [each.options for each in fit[1:TRIED] if each.step_s.low < fit[0].step_s.high]
        also = f"; {' and '.join(near)} may be as fast" if near else ""
        step = range_text(fit[0].step_s, time_text)
        yield f"best layout of {last.ranks} ranks", f"{fit[0].options}, {step}{also}"
    elif plan.layouts:
        least = min(plan.layouts, key=lambda each: each.too_large_bytes)
        lack = f"lacks {bytes_text(least.too_large_bytes)} a rank: more ranks, or more memory"
        yield "nothing fits", f"{least.options} comes nearest and {lack}"
    reasons: dict[str, list[str]] = {}
    for name, why in plan.left_out.items():
        reasons.setdefault(why, []).append(name)
    yield from (("left out", f"{'; '.join(names)}: {why}") for why, names in reasons.items())


def lack_text(memory: float, limit: float | None) -> str:
    """Return by how much a rank's bytes are too many; empty: they fit."""
    if limit is None or memory <= limit:
        return ""
    return f"does not fit: {bytes_text(memory - limit)} too much for a rank"


def epochs_text(number: int) -> str:
    return "1 epoch" if number == 1 else f"{number} epochs"


def range_text(planned: PlannedRange, form: Callable[[float], str]) -> str:
    """Return a figure with its range: 14.3 (12.9–15)."""
    return f"{form(planned.median)} ({form(planned.low)}–{form(planned.high)})"


def time_text(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def bytes_text(number: float) -> str:
    return f"{number / 1e6:.3g} MB" if number < 1e9 else f"{number / 2**30:.3g} GiB"
