"""Plans as lines of a terminal, and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.plan.machine import Cluster
from phalanx.plan.predict import BETWEEN_RUNS, WORDS, RankPlan, Target, what_helps
from phalanx.plan.profile import ProgramProfile

HEADER = " ranks nodes  step     speed-up             epoch   node hours  sent     state"
PAYS = 1.6
"""Gain of a doubling of the ranks that is called worth it."""


def plan_lines(
    profile: ProgramProfile, target: Target, plans: Sequence[RankPlan], doubts: Sequence[str]
) -> list[str]:
    """Return how a plan was calibrated, a row per number of ranks, and what is unsure."""
    lines = []
    if (unsteady := profile.unsteadiness()) > BETWEEN_RUNS:
        lines.append(
            f"calibration disturbed: equal steps differ by ± {100 * unsteady:.0f} %, and ranges "
            "are as wide; measure again on a quiet machine"
        )
    if doubts:
        lines.append(f"EXTRAPOLATED: {'; '.join(doubts)}")
    lines += [f"calibrated on {profile.hostname}: {_calibration(profile)}"]
    if target.machine is not None:
        lines.append(describe_machine(target.machine))
    lines += ["", HEADER, *(_row(target, each) for each in plans), ""]
    last = plans[-1]
    lines.append(_worth(plans))
    if helps := what_helps(profile, target, last.ranks):
        gains = ", ".join(f"{words} {gain:.2f} ×" for words, gain in helps)
        lines.append(f"most help at {last.ranks} ranks: {gains}")
    lines += [line for line in (_unsure(last), _run_that_narrows(target, last)) if line]
    return lines


def describe_machine(machine: Cluster) -> str:
    """Return a machine in a line, with what its source does not state."""
    network = "no network stated"
    if machine.network is not None:
        network = f"{machine.network.bandwidth_bytes_per_s / 1e9:g} GB/s out of a node"
        if machine.network.latency_s is not None:
            network += f", {1e6 * machine.network.latency_s:.2g} µs"
    unknown = f"; not stated: {', '.join(machine.unknown)}" if machine.unknown else ""
    return (
        f"{machine.name}: {machine.nodes} nodes × {machine.ranks_per_node} ranks, {network} "
        f"({machine.source}{unknown})"
    )


def as_json(
    profile: ProgramProfile, target: Target, plans: Sequence[RankPlan], doubts: Sequence[str]
) -> dict[str, Any]:
    """Return a plan as plain values, seconds and bytes."""
    return {
        "program": profile.program,
        "processor": profile.processor,
        "machine": None if target.machine is None else target.machine.name,
        "extrapolated": list(doubts),
        "global_batch": profile.global_batch,
        "ranks": [_rank_json(each) for each in plans],
    }


def _rank_json(each: RankPlan) -> dict[str, Any]:
    return {
        "ranks": each.ranks,
        "nodes": each.nodes,
        "step_s": each.step._asdict(),
        "speed_up": each.speed_up._asdict(),
        "epoch_s": each.epoch_s._asdict(),
        "parts": each.parts._asdict(),
        "node_hours": each.node_hours,
        "state_bytes": each.memory_bytes,
        "sent_bytes": each.sent_bytes,
        "unsure": dict(each.unsure),
    }


def _calibration(profile: ProgramProfile) -> str:
    some = [f"{each.samples} samples" for each in profile.times if each.at_once == 1]
    at_once = sorted({each.at_once for each in profile.times})
    ranks = "1 rank" if at_once == [1] else f"1 and {at_once[-1]} ranks that exchange nothing"
    return f"{profile.program}; {ranks}, steps of {' and '.join(some)}"


def _row(target: Target, each: RankPlan) -> str:
    machine = target.machine
    speed = f"{each.speed_up.median:.3g} ({each.speed_up.low:.3g}–{each.speed_up.high:.3g})"
    row = (
        f"{each.ranks:6d} {each.nodes:5d}  {_time(each.step.median):7s}  {speed:20s} "
        f"{_time(each.epoch_s.median):7s} {each.node_hours:10.2g}  "
        f"{_bytes(each.sent_bytes):8s} {_bytes(each.memory_bytes)}"
    )
    if machine is not None and each.nodes > machine.nodes:
        row += f"  more nodes than it has ({machine.nodes}); as if it had them"
    most = None if machine is None else machine.memory_gib_per_rank
    if most is not None and each.memory_bytes > most * 2**30:
        row += f"  does not fit: {each.memory_bytes / 2**30 - most:.3g} GiB too much for a rank"
    if machine is not None and machine.price_per_node_hour is not None:
        row += f"  {machine.price_per_node_hour * each.node_hours:.2f} {machine.currency}"
    return row


def _worth(plans: Sequence[RankPlan]) -> str:
    """Return up to which rank count a doubling brings `PAYS` or more."""
    last = plans[0]
    for each in plans[1:]:
        doublings = each.ranks / last.ranks / 2
        gain = last.step.median / each.step.median
        if gain < PAYS * doublings:
            first = f"worth it: to {last.ranks} ranks every doubling brings {PAYS:g} or more; "
            if last is plans[0]:
                first = f"not worth it: {each.ranks} ranks are {gain:.2f} × as fast; "
            return f"{first}at {each.ranks} a step is {_shares(each)}"
        last = each
    return f"worth it: every doubling to {last.ranks} ranks brings {PAYS:g} or more"


def _shares(each: RankPlan) -> str:
    parts = each.parts
    named = {
        "compute": parts.compute_s,
        "waiting for the slowest rank": parts.waiting_s,
        "sums of gradients that nothing hides": parts.exposed_s,
    }
    return ", ".join(f"{100 * s / parts.step_s:.0f} % {name}" for name, s in named.items())


def _unsure(each: RankPlan) -> str:
    if not each.unsure:
        return ""
    three = ", ".join(f"{WORDS[name]} (±{100 * half:.0f} %)" for name, half in each.unsure[:3])
    return f"not sure at {each.ranks} ranks: {three}"


def _run_that_narrows(target: Target, each: RankPlan) -> str:
    """Return the run on the target that would make the plan surer."""
    if target.machine is None or each.nodes == 1:
        return ""
    here = target.ranks_per_node
    return (
        f"mends most: a minute on 2 nodes of {target.machine.name}: phalanx train --strategy mpi "
        f"--ranks {2 * here} --hosts a:{here},b:{here} with the same options; then add --with "
        "the folder of that run"
    )


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _bytes(number: float) -> str:
    return f"{number / 1e6:.3g} MB"
