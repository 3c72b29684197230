"""Plans as lines of a terminal. Pure."""

from __future__ import annotations

from phalanx.records.plan import Plan, PlannedRanks
from phalanx.records.plan_texts import (
    TRIED,
    bytes_text,
    doubts_of,
    epochs_text,
    findings_of,
    lack_text,
    range_text,
    time_text,
)

HEADER = " ranks nodes  step     speed-up           the whole node hours  sent    memory"


def plan_lines(plan: Plan) -> list[str]:
    """Return how a plan was calibrated, a row per number of ranks, and what is unsure."""
    lines = [*doubts_of(plan), f"calibrated on {plan.calibrated}"]
    if plan.machine is not None:
        lines.append(plan.machine)
    lines.append(f"{plan.options}, batches of {plan.global_batch}, {epochs_text(plan.epochs)}")
    lines += ["", HEADER, *(_row(plan, each) for each in plan.rows), ""]
    lines += [f"{about}: {text}" for about, text in findings_of(plan)]
    return lines + (layout_lines(plan) if plan.layouts else [])


def layout_lines(plan: Plan, most: int = 12) -> list[str]:
    """Return the layouts of the most ranks, the best first; those of the first three with the
    command that tries each."""
    ranks = plan.rows[-1].ranks
    lines = ["", f"layouts of {ranks} ranks, best first", " step (90 % range)         memory"]
    for each in plan.layouts[:most]:
        memory = "" if each.peak_bytes is None else bytes_text(each.peak_bytes)
        lines.append(f" {range_text(each.step_s, time_text):25s} {memory:9s} {each.options}")
        if lack := lack_text(each.too_large_bytes, 0.0):
            lines.append(f"   {lack}")
    fits = [each for each in plan.layouts if not each.too_large_bytes]
    return lines + [f"to try: phalanx train {e.options} --ranks {ranks}" for e in fits[:TRIED]]


def budget_line(plan: Plan, node_hours: float) -> str:
    """Return what a number of node hours is enough for."""
    fits = [each for each in plan.rows if each.node_hours <= node_hours]
    if not fits:
        least = min(plan.rows, key=lambda each: each.node_hours)
        return (
            f"{node_hours:g} node hours are not enough: {epochs_text(plan.epochs)} take "
            f"{least.node_hours:.3g} on {least.ranks} ranks, which need least"
        )
    best = min(fits, key=lambda each: each.whole_s.median)
    return (
        f"{node_hours:g} node hours are enough for {best.ranks} ranks: {epochs_text(plan.epochs)} "
        f"in {time_text(best.whole_s.median)} for {best.node_hours:.3g}"
    )


def _row(plan: Plan, each: PlannedRanks) -> str:
    memory = each.peak_bytes or each.state_bytes or 0.0
    row = (
        f"{each.ranks:6d} {each.nodes:5d}  {time_text(each.step_s.median):7s}  "
        f"{range_text(each.speed_up, '{:.3g}'.format):18s} "
        f"{time_text(each.whole_s.median):9s} {each.node_hours:10.2g}  "
        f"{'?' if each.sent_bytes is None else bytes_text(each.sent_bytes):7s} "
        f"{bytes_text(memory)}"
    )
    if plan.machine_nodes is not None and each.nodes > plan.machine_nodes:
        row += f"\n        more nodes than it has ({plan.machine_nodes}); as if it had them"
    if lack := lack_text(memory, plan.memory_bytes):
        row += f"\n        {lack}"
    if each.cost is not None:
        row += f"\n        {each.cost:.2f} {plan.currency}"
    return row
