"""Theory of every strategy: bytes that a rank sends, receives and stores. Pure; needs no PyTorch.

Exact: each collective is counted as `comm.traffic` counts it, with the padding that FSDP adds
where a parameter's first dim does not divide. Ψ: trained values, of a pipeline those of this
rank's stages; p: ranks, or replicas of a mesh; k: ranks of a node; N: shards. Ψₛ of the values are
split by tensor parallelism among t ranks, Ψᵣ are on each of them.

Source: Narayanan et al. 2021, arXiv:2104.04473, §3; Rajbhandari et al. 2020, arXiv:1910.02054, §7.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from phalanx.comm.traffic import (
    Traffic,
    all_gather_traffic,
    all_reduce_traffic,
    broadcast_traffic,
    reduce_scatter_traffic,
    sum_traffic,
)
from phalanx.gradients.optimizer_update import STATE_NAMES, OptimizerConfig
from phalanx.models.splits import SplitTraffic
from phalanx.parallel.mesh import Mesh
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.records.events import ExpectedCosts

if TYPE_CHECKING:
    from torch import Tensor

NOTHING = Traffic(0, 0, 0)


class Trained(NamedTuple):
    """Trained parameters, as the formulas need them."""

    itemsize: int
    """Bytes of a value."""
    num_bytes: int
    quantities: int
    """Values of the optimizer's state for each value."""

    @classmethod
    def of(cls, parameters: Sequence[Tensor], rule: OptimizerConfig) -> Trained:
        num_bytes = sum(parameter.nbytes for parameter in parameters)
        return cls(parameters[0].element_size(), num_bytes, len(STATE_NAMES[rule.kind]))


# -- replicas ------------------------------------------------------------------------------------


def all_reduce_formula(name: str, rank: int, size: int, itemsize: int) -> str:
    """Return the formula, to be read, of what the reducer `name` has `rank` send and receive."""
    whole = f"{itemsize}Ψ"
    match name:
        case "naive":
            return f"(p−1) · {whole}" if rank == 0 else whole
        case "tree":
            return f"{whole} for each neighbour in the tree"
        case "halving" if size & (size - 1):
            power = 1 << size.bit_length() - 1
            return f"2(q−1)/q · {whole} with q = {power}, {whole} between q and the others"
        case _:
            return f"2(p−1)/p · {whole}"


def data_parallel_state(trained: Trained) -> tuple[int, str]:
    """Return the bytes of unsharded parameters, gradients and optimizer state, and their
    formula."""
    itemsize, num_bytes, quantities = trained
    formula = " + ".join(f"{n * itemsize}Ψ" for n in (1, 1, quantities) if n)
    return (2 + quantities) * num_bytes, formula


def data_parallel_costs(
    trained: Trained,
    sent_bytes: float | None = 0,
    received_bytes: float | None = 0,
    traffic_formula: str | None = None,
) -> ExpectedCosts:
    """Return the costs of a rank that holds the whole model; the traffic is given."""
    state_bytes, formula = data_parallel_state(trained)
    return ExpectedCosts(
        sent_bytes=sent_bytes,
        received_bytes=received_bytes,
        traffic_formula=traffic_formula,
        state_bytes=state_bytes,
        state_formula=formula,
    )


def local_costs(
    trained: Trained, traffic: Traffic | None, *, period: int, has_momentum: bool
) -> ExpectedCosts:
    """Return the costs of a rank that averages its parameters every `period` steps. traffic: of an
    average. has_momentum: of the outer optimizer."""
    itemsize, num_bytes, _ = trained
    sent, received = traffic[:2] if traffic else (0, 0)
    state_bytes, formula = data_parallel_state(trained)
    copies = 2 if has_momentum else 1
    return ExpectedCosts(
        sent_bytes=sent / period,
        received_bytes=received / period,
        traffic_formula=f"2(p−1)/p · {itemsize}Ψ/H with H = {period}, and an epoch's end",
        state_bytes=state_bytes + copies * num_bytes,
        state_formula=f"{formula} + {copies * itemsize}Ψ",
    )


# -- state in shards -----------------------------------------------------------------------------


def assign_owners(sizes: Sequence[int], ranks: int) -> list[int]:
    """Return the owner of each parameter's optimizer state at stage 1: the largest first, to the
    rank that has least so far, as PyTorch's ZeroRedundancyOptimizer assigns them."""
    filled, owners = [0] * ranks, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        owner = filled.index(min(filled))
        owners[number] = owner
        filled[owner] += sizes[number]
    return owners


def zero_one_traffic(sizes: Sequence[int], rank: int, ranks: int, itemsize: int) -> Traffic:
    """Return the traffic of an all-reduce of the gradients and each owner's broadcast of its
    parameters.

    DDP sums in buckets, each of which may move a value more or less for a rank than counted here.

    sizes: values of each parameter.
    """
    handed_on = [
        broadcast_traffic(size * itemsize, rank, ranks, owner)
        for size, owner in zip(sizes, assign_owners(sizes, ranks), strict=True)
    ]
    return sum_traffic([all_reduce_traffic(sum(sizes), itemsize, rank, ranks), *handed_on])


def zero_one_costs(trained: Trained, sizes: Sequence[int], rank: int, ranks: int) -> ExpectedCosts:
    """Return the costs of ZeRO stage 1. sizes: values of each parameter."""
    itemsize, num_bytes, quantities = trained
    traffic, state = zero_one_traffic(sizes, rank, ranks, itemsize), quantities * itemsize
    owners = assign_owners(sizes, ranks)
    own = sum(n for n, owner in zip(sizes, owners, strict=True) if owner == rank)
    return ExpectedCosts(
        sent_bytes=traffic.sent_bytes,
        received_bytes=traffic.received_bytes,
        traffic_formula=f"2(p−1)/p · {itemsize}Ψ + (p−1) · {itemsize}Ψ_own",
        state_bytes=2 * num_bytes + state * own,
        state_formula=f"{2 * itemsize}Ψ + {state}Ψ_own, Ψ_own about Ψ/p",
    )


def shared_memory_costs(
    trained: Trained, traffic: Traffic | None, traffic_formula: str, num_sharers: int, sharers: str
) -> ExpectedCosts:
    """Return the costs of a rank of a node with one copy of parameters and state, of which each of
    its ranks counts its part. sharers: their number in formulas."""
    itemsize, num_bytes, quantities = trained
    return ExpectedCosts(
        sent_bytes=None if traffic is None else traffic.sent_bytes,
        received_bytes=None if traffic is None else traffic.received_bytes,
        traffic_formula=None if traffic is None else traffic_formula,
        state_bytes=num_bytes + (1 + quantities) * num_bytes / num_sharers,
        state_formula=f"{itemsize}Ψ + {(1 + quantities) * itemsize}Ψ/{sharers}",
    )


def owned_costs(
    trained: Trained, parameters: str, num_sharers: int, *, held_bytes: int, copied_bytes: int
) -> ExpectedCosts:
    """Return the costs of a rank that updates the parameters that it holds.

    parameters: the values of which it has the memory, with `num_sharers`, in formulas. held_bytes:
    of those whose state it keeps. copied_bytes: of those of which it has a copy, too.
    """
    itemsize, num_bytes, quantities = trained
    formula = f"{itemsize}Ψ + {itemsize}{parameters} + {quantities * itemsize}Ψ_held"
    own_bytes = num_bytes / num_sharers + copied_bytes + quantities * held_bytes
    return ExpectedCosts(
        state_bytes=num_bytes + own_bytes,
        state_formula=formula + (f" + {itemsize}Ψ_copied" if copied_bytes else ""),
    )


# -- servers -------------------------------------------------------------------------------------


def worker_costs(trained: Trained, num_servers: int, header_bytes: int) -> ExpectedCosts:
    """Return the costs of a worker, which has parameters and gradients."""
    itemsize, num_bytes, _ = trained
    return ExpectedCosts(
        sent_bytes=num_bytes + header_bytes * num_servers,
        received_bytes=num_bytes,
        traffic_formula=f"{itemsize}Ψ each way, and {header_bytes} bytes to each server",
        state_bytes=2 * num_bytes,
        state_formula=f"{itemsize}Ψ + {itemsize}Ψ",
    )


def server_costs(
    trained: Trained, own_bytes: int, num_slots: int, num_workers: int, header_bytes: int
) -> ExpectedCosts:
    """Return the costs of a server. own_bytes: of its shard. num_slots: gradients of it that the
    server stores at a time."""
    itemsize, num_bytes, quantities = trained
    shard, slots = f"{itemsize}Ψ/s", "W" if num_slots > 1 else "1"
    return ExpectedCosts(
        sent_bytes=num_workers * own_bytes,
        received_bytes=num_workers * (own_bytes + header_bytes),
        traffic_formula=f"W · {shard} each way, and {header_bytes} bytes from each worker",
        state_bytes=num_bytes + (num_slots + quantities) * own_bytes,
        state_formula=f"{itemsize}Ψ + {slots} · {shard} + {quantities * itemsize}Ψ/s",
    )


# -- stages of a pipeline ------------------------------------------------------------------------


def stage_costs(trained: Trained, bubble: float, traffic_bytes: int | None = None) -> ExpectedCosts:
    """Return the costs of a rank of which `trained` are those of its stages. traffic_bytes: as
    `step_traffic`; None: unknown."""
    formula = "each boundary with another rank: the activations of the batch, and gradients"
    return ExpectedCosts(
        sent_bytes=traffic_bytes,
        received_bytes=traffic_bytes,
        traffic_formula=None if traffic_bytes is None else formula,
        state_bytes=(2 + trained.quantities) * trained.num_bytes,
        state_formula=f"{2 + trained.quantities} · the parameters of its stages",
        bubble=bubble,
    )


def step_traffic(layout: PipelineLayout, rank: int, boundary_bytes: Sequence[int]) -> int:
    """Return the bytes that a rank sends over its boundaries in one step, and receives.

    The activations of all samples go over each boundary between stages of different ranks, and
    gradients of the same size come back.

    boundary_bytes: of these activations, behind each stage but the last.
    """
    assert len(boundary_bytes) == layout.num_stages - 1, "one behind each stage but the last"
    crossed = 0
    for stage in layout.stages_of(rank):
        for other, boundary in ((stage - 1, stage - 1), (stage + 1, stage)):
            if 0 <= other < layout.num_stages and layout.rank_of(other) != rank:
                crossed += boundary_bytes[boundary]
    return crossed


# -- a mesh --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """A parameter of the full model."""

    shape: tuple[int, ...]
    split: int | None = None
    """The dim along which tensor parallelism cuts it; None: whole on every rank."""

    def values(self, tp: int) -> int:
        """Return how many values a rank of axis tp has; the dim divides."""
        return math.prod(self.shape) // (tp if self.split is not None else 1)

    def shard_values(self, tp: int, shards: int) -> int:
        """Return how many of these each of `shards` equal shards along the first dim has, padding
        included."""
        rows = self.shape[0] // (tp if self.split == 0 else 1)
        return -(-rows // shards) * (self.values(tp) // rows)

    def local_values(self, tp: int, shards: int, shard: int) -> int:
        """Return how many of these shard number `shard` has, padding left out."""
        rows = self.shape[0] // (tp if self.split == 0 else 1)
        longest = -(-rows // shards)
        own = min(longest, max(0, rows - shard * longest))
        return own * (self.values(tp) // rows)


Unit = Sequence[ParameterSpec]
"""Parameters that FSDP gathers together."""


def stored_bytes(
    units: Sequence[Unit], mesh: Mesh, place: Mapping[str, int], itemsize: int, quantities: int
) -> int:
    """Return the bytes of parameters and gradients, padded, and optimizer state between two steps.

    During the step a rank of the axis shard has whole parameters besides: at stage 2 all of them,
    at stage 3 those of the unit at work and of the next.

    quantities: of the optimizer, for each value.
    """
    parameters = [parameter for unit in units for parameter in unit]
    filled = sum(p.shard_values(mesh.tp, mesh.shard) for p in parameters)
    own = sum(p.local_values(mesh.tp, mesh.shard, place["shard"]) for p in parameters)
    return itemsize * (2 * filled + quantities * own)


def stored_formula(mesh: Mesh, itemsize: int, quantities: int) -> str:
    whole = (2 + quantities) * itemsize
    if mesh.tp > 1:
        return f"{whole}(Ψₛ/t + Ψᵣ)/N" if mesh.shard > 1 else f"{whole}Ψₛ/t + {whole}Ψᵣ"
    return f"{whole}Ψ/N" if mesh.shard > 1 else f"{whole}Ψ"


def replica_traffic(
    units: Sequence[Unit], mesh: Mesh, place: Mapping[str, int], itemsize: int
) -> Traffic:
    """Return the traffic of a step's gradient all-reduce over axis dp, where nothing is sharded."""
    if mesh.dp == 1 or mesh.shard > 1:
        return NOTHING
    values = sum(p.values(mesh.tp) for unit in units for p in unit)
    return all_reduce_traffic(values, itemsize, place["dp"], mesh.dp)


def shard_traffic(
    units: Sequence[Unit], mesh: Mesh, place: Mapping[str, int], itemsize: int, *, gathers: int
) -> Traffic:
    """Return the traffic of a step over axis shard, and over axis dp beside it.

    Over axis shard: `gathers` all-gathers of parameters, and the reduce-scatter of gradients; then
    over axis dp the all-reduce of a shard's gradients.
    """
    if mesh.shard == 1:
        return NOTHING
    moves = []
    for unit in units:
        values = sum(p.shard_values(mesh.tp, mesh.shard) for p in unit)
        parts = [values * itemsize] * mesh.shard
        moves += [all_gather_traffic(parts, place["shard"])] * gathers
        moves.append(reduce_scatter_traffic(parts, place["shard"]))
        if mesh.dp > 1:
            moves.append(all_reduce_traffic(values, itemsize, place["dp"], mesh.dp))
    return sum_traffic(moves)


def tensor_parallel_traffic(
    layers: Collection[str],
    rows: Sequence[int],
    split: SplitTraffic,
    mesh: Mesh,
    place: Mapping[str, int],
    itemsize: int,
) -> Traffic:
    """Return the traffic of a step over axis tp.

    layers: names of the model's children that this rank holds. rows: samples · T of the
    activations of each micro-batch, T = 1 of images. split: messages of the whole model.
    """
    if mesh.tp == 1:
        return NOTHING
    children = [split.of(name) for name in layers]
    moves = []
    for number in rows:
        values = number * split.width
        reduced = all_reduce_traffic(values, itemsize, place["tp"], mesh.tp)
        parts = [values // mesh.tp * itemsize] * mesh.tp
        gathered, scattered = (
            all_gather_traffic(parts, place["tp"]),
            reduce_scatter_traffic(parts, place["tp"]),
        )
        for child in children:
            moves += [reduced] * child.all_reduces
            moves += [gathered, scattered] * child.pairs + [gathered] * child.gathers
    norm = all_reduce_traffic(split.width, itemsize, place["tp"], mesh.tp)
    moves += [norm] * sum(2 * child.norms for child in children)
    return sum_traffic(moves)


def traffic_formula(
    mesh: Mesh,
    layers: Collection[str],
    split: SplitTraffic | None,
    itemsize: int,
    *,
    zero_stage: int,
) -> str:
    """Return the formula of these three, to be read; padding and the embedding's gathers are left
    out. split: None where axis tp has one rank."""
    whole = f"{itemsize}Ψ" if mesh.tp == 1 else f"{itemsize}(Ψₛ/t + Ψᵣ)"
    terms = []
    children = [] if split is None else [split.of(name) for name in layers]
    if mesh.tp > 1:
        number = sum(child.all_reduces + child.pairs for child in children)
        terms.append(f"{number} · 2(t−1)/t · {itemsize}·b·s·h")
    if mesh.shard > 1:
        terms.append(f"{3 if zero_stage == 3 else 2}(N−1)/N · {whole}")
        if mesh.dp > 1:
            terms.append(f"2(p−1)/p · {whole}/N")
    elif mesh.dp > 1:
        terms.append(f"2(p−1)/p · {whole}")
    if any(child.pairs for child in children):
        terms.append("the gathers of embedding and head")
    return " + ".join(terms) or "0"


def mesh_costs(
    units: Mapping[str, Unit],
    split: SplitTraffic | None,
    mesh: Mesh,
    place: Mapping[str, int],
    itemsize: int,
    *,
    quantities: int,
    zero_stage: int,
    rows: Sequence[int],
) -> ExpectedCosts:
    """Return the costs of a rank, without messages between stages.

    units: by module; "" has those of no other. rows: samples · T of each micro-batch. split: None
    for a model whose messages of tensor parallelism are not known; nor are the bytes then, nor
    where a sharded model has parameters of its own.
    """
    stored = ExpectedCosts(
        state_bytes=stored_bytes(list(units.values()), mesh, place, itemsize, quantities),
        state_formula=stored_formula(mesh, itemsize, quantities),
    )
    if ("" in units and mesh.shard > 1) or (mesh.tp > 1 and split is None):
        return stored
    parameters, layers = list(units.values()), [name for name in units if name]
    gathers = len(rows) * (2 if zero_stage == 3 else 1)
    moves = [
        shard_traffic(parameters, mesh, place, itemsize, gathers=gathers),
        replica_traffic(parameters, mesh, place, itemsize),
    ]
    if split is not None:
        moves.append(tensor_parallel_traffic(layers, rows, split, mesh, place, itemsize))
    moved = sum_traffic(moves)
    return msgspec.structs.replace(
        stored,
        sent_bytes=moved.sent_bytes,
        received_bytes=moved.received_bytes,
        traffic_formula=traffic_formula(mesh, layers, split, itemsize, zero_stage=zero_stage),
    )
