"""Mesh of ranks: the coordinates of each rank along each axis of parallelism. Pure; needs no
PyTorch.

The last axis changes fastest, so its ranks are neighbours and share a node as long as they can;
the axes stand in the order of how often their ranks talk to each other, the chattiest last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from phalanx.errors import UserError

AXES = ("pp", "dp", "shard", "tp")
"""Axes, the one that talks least first: pipeline, data (replicas), data (shards of parameters),
tensor."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The number of ranks along each axis."""

    pp: int = 1
    """Stages of the pipeline (of ranks; a rank may hold several stages)."""

    dp: int = 1
    """Replicas, each of which sees its part of the global batch."""

    shard: int = 1
    """The same, but parameters, gradients and optimizer state are cut among these ranks."""

    tp: int = 1
    """Ranks that share every layer's matrices, and see the same samples."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of ranks along each of `AXES`."""
        return tuple(getattr(self, axis) for axis in AXES)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of `rank`."""
        coordinates = {}
        for axis in reversed(AXES):
            rank, coordinates[axis] = divmod(rank, getattr(self, axis))
        return {axis: coordinates[axis] for axis in AXES}

    @property
    def axes(self) -> dict[str, int]:
        """Return the axes with several ranks, and their numbers."""
        return {axis: getattr(self, axis) for axis in AXES if getattr(self, axis) > 1}

    @property
    def data_size(self) -> int:
        """Number of shards into which each global batch is divided."""
        return self.dp * self.shard

    def data_rank(self, rank: int) -> int:
        """Return the number of `rank`'s shard of each global batch."""
        place = self.coordinates(rank)
        return place["dp"] * self.shard + place["shard"]

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in self.axes.items()) or "dp=1"


def crossing_axes(mesh: Mesh, ranks_per_node: int) -> tuple[str, ...]:
    """Return the axes along which some rank communicates with another node, when each node has
    `ranks_per_node` consecutive ranks."""

    def crosses(axis: str) -> bool:
        length = getattr(mesh, axis)
        stride = math.prod(mesh.shape[AXES.index(axis) + 1 :])
        first_ranks = (rank for rank in range(mesh.size) if mesh.coordinates(rank)[axis] == 0)
        return any(
            first // ranks_per_node != (first + (length - 1) * stride) // ranks_per_node
            for first in first_ranks
        )

    return tuple(axis for axis in AXES if crosses(axis))


def placement_notice(mesh: Mesh, ranks_per_node: int) -> str:
    """Return a notice for the user on which axes cross nodes; empty: all is on one node."""
    crossing = crossing_axes(mesh, ranks_per_node)
    if not crossing:
        return ""
    ranks = "1 rank" if ranks_per_node == 1 else f"{ranks_per_node} ranks"
    notice = f"{ranks} per node: {', '.join(crossing)} between nodes"
    if "tp" in crossing:
        notice += (
            f"; tp={mesh.tp} communicates within every layer, which is faster on one node: use "
            f"tp={math.gcd(mesh.tp, ranks_per_node)}"
        )
    return notice


def parse_mesh(text: str) -> Mesh:
    """`dp=2,tp=2` → Mesh(dp=2, tp=2).

    Raises: UserError naming the word that is not `axis=ranks`.
    """
    sizes: dict[str, int] = {}
    names = [field.name for field in fields(Mesh)]
    for word in text.split(","):
        axis, _, number = word.strip().partition("=")
        if axis not in names or not number.isdecimal() or int(number) < 1:
            raise UserError(
                f"--mesh {text}: {word.strip()!r} is not an axis with a number of ranks: write "
                f"dp=2,tp=2, for example; the axes are {', '.join(names)}"
            )
        if axis in sizes:
            raise UserError(f"--mesh {text} names {axis} twice")
        sizes[axis] = int(number)
    return Mesh(**sizes)


def check_mesh(mesh: Mesh, ranks: int) -> None:
    """Raise UserError when the axes do not multiply up to the number of ranks."""
    if mesh.size != ranks:
        product = " × ".join(f"{axis}({getattr(mesh, axis)})" for axis in AXES)
        raise UserError(
            f"--mesh {mesh}: {product} = {mesh.size}, but there are {ranks} ranks: "
            f"use --ranks {mesh.size}, or axes whose product is {ranks}"
        )
