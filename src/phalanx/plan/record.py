"""A plan as the record that is kept, printed and drawn. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from phalanx.errors import UserError
from phalanx.plan.changes import what_helps
from phalanx.plan.machine import Cluster
from phalanx.plan.measured_rows import MeasuredRow
from phalanx.plan.predict import BETWEEN_RUNS, Target, plan_ranks, reasons_to_doubt
from phalanx.plan.profile import ProgramProfile
from phalanx.plan.search import option_words, search_layouts
from phalanx.records.plan import Plan, PlannedLayout

LEAST_CORE_SHARE = 0.95
"""Part of the time that threads have a core on a machine that is called quiet."""


def make_plan(
    profile: ProgramProfile,
    target: Target,
    counts: Sequence[int],
    rows: Sequence[MeasuredRow] = (),
    *,
    command: str,
    with_layouts: bool = False,
) -> Plan:
    """Return the plan of a training on each of `counts` ranks. rows: measured ones of the target.

    with_layouts: also search the layouts of the most ranks.
    Raises: UserError for a strategy that the program, or its profile, does not allow, and where all
            counts are larger than the batch.
    """
    layouts, left_out = list[PlannedLayout](), dict[str, str]()
    if with_layouts:
        layouts, left_out = search_layouts(profile, target, max(counts))
    most, what = profile.global_batch, "samples"
    if profile.micro_batches is not None:
        most, what = profile.micro_batches, "micro-batches"
    many = [count for count in counts if _parts(target, count) > most]
    if many:
        name = f"--ranks {many[0]}{' and more' * (len(many) > 1)}"
        left_out[name] = (
            f"the batch has {most} {what}, fewer than its parts: plan with more of them"
        )
        if len(many) == len(counts):
            raise UserError(f"{name}: {left_out[name]}")
    counts = [count for count in counts if count not in many]
    machine, unsteady = target.machine, profile.unsteadiness()
    alone = [each for each in profile.times if each.at_once == 1]
    whole = [each.median_s for each in alone if each.samples == profile.global_batch]
    planned = plan_ranks(profile, target, counts, rows)
    return Plan(
        command=command,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        program=profile.program,
        calibrated=f"{profile.hostname}: {_calibration(profile)}",
        machine=None if machine is None else _describe(machine),
        machine_nodes=None if machine is None else machine.nodes,
        memory_bytes=target.memory_bytes,
        currency=None if machine is None else machine.currency,
        options=option_words(target.options),
        global_batch=profile.global_batch,
        alone_s=whole[0] if whole else None,
        epochs=target.epochs,
        disturbed=unsteady if unsteady > BETWEEN_RUNS else None,
        core_share=profile.core_share if profile.core_share < LEAST_CORE_SHARE else None,
        extrapolated=reasons_to_doubt(profile, target, counts),
        rows=planned,
        helps=what_helps(profile, target, counts),
        layouts=layouts,
        left_out=left_out,
        narrows=_run_that_narrows(target, planned[-1].nodes),
    )


def _parts(target: Target, ranks: int) -> int:
    """Return into how many parts so many ranks divide a batch; the profile's rank has it whole."""
    return target.options.data_parts(ranks) if ranks > 1 else 1


def _calibration(profile: ProgramProfile) -> str:
    some = [f"{each.samples} samples" for each in profile.times if each.at_once == 1]
    at_once = sorted({each.at_once for each in profile.times})
    ranks = "1 rank" if at_once == [1] else f"1 and {at_once[-1]} ranks that exchange nothing"
    return f"{profile.program}; {ranks}, steps of {' and '.join(some)}"


def _run_that_narrows(target: Target, nodes: int) -> str:
    """Return the run on the target that would make the plan surer; empty: none would."""
    if target.machine is None or nodes == 1:
        return ""
    here = target.ranks_per_node
    return (
        f"a minute on 2 nodes of {target.machine.name}: phalanx train "
        f"{option_words(target.options)} --ranks {2 * here} --hosts a:{here},b:{here} with the "
        "same options; then add --with the folder of that run"
    )


def _describe(machine: Cluster) -> str:
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
