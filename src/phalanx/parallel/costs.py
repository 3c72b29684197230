"""Costs of a mesh for one rank: bytes sent, received and stored. Pure; needs no PyTorch.

Exact: each collective is counted as `comm.traffic` counts it, with the padding that FSDP adds
where a parameter's first dim does not divide. Ψ: trained values of this rank's stages; Ψₛ of these
are split by tensor parallelism among t ranks, Ψᵣ are on each of them; N: shards, p: replicas.

Source: Narayanan et al. 2021, arXiv:2104.04473, §3; Rajbhandari et al. 2020, arXiv:1910.02054, §7.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from phalanx.comm.traffic import (
    Traffic,
    all_gather_traffic,
    all_reduce_traffic,
    broadcast_traffic,
    reduce_scatter_traffic,
    sum_traffic,
)
from phalanx.models.splits import SplitTraffic
from phalanx.parallel.mesh import Mesh

NOTHING = Traffic(0, 0, 0)


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
