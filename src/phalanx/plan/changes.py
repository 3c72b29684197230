"""Changes of a machine or a program, and by how much each makes a training faster. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from phalanx.errors import UserError
from phalanx.plan.machine import Cluster, shared_by
from phalanx.plan.predict import MIDDLE, Predictor, Target
from phalanx.plan.profile import ProgramProfile
from phalanx.records.plan import PlannedHelp, last_worth

LEAST_GAIN = 1.005


def what_helps(
    profile: ProgramProfile, target: Target, counts: Sequence[int]
) -> dict[str, PlannedHelp]:
    """Return by how much samples come faster on the most of `counts` ranks after each change, the
    best first, and to how many ranks doublings pay then; changes that bring nothing are left
    out."""
    own = _steps(profile, target, counts)
    found, pays_to = dict[str, PlannedHelp](), counts[last_worth(own)]
    for words, other, changed in _changes(profile, target, counts[-1]):
        steps = _steps(other, changed, counts)
        gain = own[-1][1] / steps[-1][1] * other.global_batch / profile.global_batch
        then = counts[last_worth(steps)]
        found[words] = PlannedHelp(gain=gain, pays_to=then if then > pays_to else None)
    helps = (each for each in found.items() if each[1].gain > LEAST_GAIN)
    return dict(sorted(helps, key=lambda each: -each[1].gain))


def _steps(
    profile: ProgramProfile, target: Target, counts: Sequence[int]
) -> list[tuple[int, float]]:
    """Return rank counts with the seconds of a step, in the middle of all that is unknown."""
    return [(ranks, Predictor(profile, target, ranks).step(MIDDLE).step_s) for ranks in counts]


def _changes(
    profile: ProgramProfile, target: Target, ranks: int
) -> Iterator[tuple[str, ProgramProfile, Target]]:
    larger = msgspec.structs.replace(profile, global_batch=2 * profile.global_batch)
    yield "twice the global batch", larger, target
    machine = target.machine
    if machine is None:
        return

    def on(**changes: object) -> Target:
        return replace(target, machine=msgspec.structs.replace(machine, **changes))

    if machine.storage_bytes_per_s is not None:
        yield "twice the storage", profile, on(storage_bytes_per_s=2 * machine.storage_bytes_per_s)
    network = machine.network
    if network is None or ranks <= target.ranks_per_node:
        return
    faster = msgspec.structs.replace(
        network, bandwidth_bytes_per_s=2 * network.bandwidth_bytes_per_s
    )
    yield "twice the bandwidth", profile, on(network=faster)
    if network.latency_s is not None:
        nearer = msgspec.structs.replace(network, latency_s=network.latency_s / 2)
        yield "half the latency", profile, on(network=nearer)
    if machine.cores_per_node is not None:
        more = machine.cores_per_node + target.ranks_per_node
        yield "a core more per rank", profile, on(cores_per_node=more)
    if target.options.strategy == "mpi" and target.options.compress == "none":
        halved = replace(target.options, compress="bf16")
        yield "bf16 sums", profile, replace(target, options=halved)


_NAMES: Mapping[str, str] = {
    "bandwidth": "network.bandwidth_bytes_per_s",
    "latency": "network.latency_s",
    "ranks_per_node": "ranks_per_node",
    "cores": "cores_per_node",
    "memory": "memory_gib_per_rank",
    "storage": "storage_bytes_per_s",
    "nodes": "nodes",
    "price": "price_per_node_hour",
}
"""Keys of a machine that --what-if changes, by the names that it has there."""


def machine_with(machine: Cluster, text: str) -> Cluster:
    """Return a machine after changes such as `bandwidth=2x,ranks_per_node=4`.

    Raises: UserError for another name, for no number, and for what the machine does not state.
    """
    for word in text.split(","):
        name, _, value = (part.strip() for part in word.partition("="))
        number = re.fullmatch(r"(\d+(?:\.\d+)?(?:e-?\d+)?)(x?)", value)
        if name not in _NAMES or number is None or float(number[1]) <= 0:
            raise UserError(
                f"--what-if {word.strip()}: write a name, = and a number, or times as 2x; the "
                f"names are {', '.join(_NAMES)}"
            )
        before = machine
        machine = _with(machine, _NAMES[name].split("."), float(number[1]), bool(number[2]), word)
        if name == "ranks_per_node":
            shared = shared_by(before, machine.ranks_per_node).memory_gib_per_rank
            machine = msgspec.structs.replace(machine, memory_gib_per_rank=shared)
    return machine


def _with(owner: Any, path: Sequence[str], number: float, is_factor: bool, word: str) -> Any:
    """Return a struct with the number, or its own times the number, in place of a field."""
    name, *others = path
    own = getattr(owner, name)
    if own is None and (others or is_factor):
        raise UserError(f"--what-if {word.strip()}: the machine does not state {name}")
    if others:
        value = _with(own, others, number, is_factor, word)
    else:
        value = own * number if is_factor else number
        value = round(value) if isinstance(own, int) else value
    return msgspec.structs.replace(owner, **{name: value})
