"""Sums over the micro-batches of a global batch in an order that the ranks do not change."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from phalanx.comm.world import World
from phalanx.gradients.summation_tree import Exchange, Subtree, SummationTree, plan_exchange
from phalanx.gradients.tree_vector import TreeVector, make_tree_vector


class TreeReducer:
    """Reducer of lists of tensors, one list a micro-batch, in the order of a `SummationTree`.

        reducer.begin(owners, leaves)
        for leaf in own_leaves:
            reducer.add(leaf, tensors)
        sums = reducer.reduce()

    The sums have the same bits on every rank, and on any number of ranks. Half types are rounded
    after each addition. Ranks of one node read the sums from one place, where they must not be
    changed.

    Cost: of a micro-batch an addition in place; a rank keeps at most log₂ of its micro-batches
    partial sums. Ranks that hold k of them give k slices to each peer and gather the sums: for
    ranks that share the micro-batches evenly as much as a reduce-scatter and an all-gather.
    """

    is_finite: bool | None = None
    """True if the last sums are, the same on every rank; None where they were not checked."""

    def __init__(
        self,
        likes: Sequence[Tensor],
        num_leaves: int,
        world: World | None,
        owners: Sequence[int | None] | None = None,
    ) -> None:
        """likes: tensors of the shapes and types of a list. num_leaves: micro-batches of a full
        global batch. world: None for a single process. owners: of the likes, the only rank that
        needs the sum, None where all do; None: all need all. Collective."""
        self._owners_of_sums, self._num_leaves = owners, num_leaves
        self._world = world if world is not None and world.size > 1 else None
        self._exchange: Exchange | None = None
        self._leaves: frozenset[int] = frozenset()
        self._sums: dict[Subtree, list[Tensor]] = {}
        self._held: set[int] = set()
        self._complex = [place for place, like in enumerate(likes) if like.is_complex()]
        self._likes = self._as_real(likes)
        self._vector: TreeVector | None = None
        self._num_windows = 0

    @property
    def is_divided(self) -> bool:
        """Return whether the last sums that other ranks own are empty tensors here."""
        return self._vector is not None and self._vector.is_divided

    def begin(self, owners: Sequence[Collection[int]], leaves: Collection[int]) -> None:
        """Begin a global batch. owners: the micro-batches of each rank; leaves: those that have
        samples; the same on all ranks."""
        self.clear()
        self._leaves = frozenset(leaves)
        self._exchange = self._plan(owners)

    def rejoin(self, world: World, owners: Sequence[Collection[int]]) -> None:
        """Go on with the ranks that are left, with what this one has added. owners: as of
        `begin`; a leaf that was added stays with who added it."""
        self._world = world if world.size > 1 else None
        self.is_finite = None
        self._vector, self._num_windows = None, 0  # its memory lives as long as its last sums
        if self._exchange is not None:
            self._exchange = self._plan(owners)

    def missing(self, leaves: Collection[int]) -> list[int]:
        """Return which of `leaves` have samples and were not added in this step."""
        return sorted(self._leaves.intersection(leaves) - self._held)

    def clear(self) -> None:
        """Forget what was added, once its sums are known."""
        self._sums.clear()
        self._held.clear()
        self._leaves, self._exchange = frozenset(), None

    def _plan(self, owners: Sequence[Collection[int]]) -> Exchange:
        return plan_exchange(tuple(map(tuple, owners)), self._leaves, self._num_leaves)

    @torch.no_grad()
    def add(self, leaf: int, tensors: list[Tensor]) -> None:
        """Add what micro-batch `leaf` has made, and keep it: the tensors are changed."""
        assert self._exchange is not None, "begin() comes first"
        add_leaf(self._exchange.tree, self._sums, leaf, self._as_real(tensors))
        self._held.add(leaf)

    @torch.no_grad()
    def reduce(self) -> list[Tensor]:
        """Return the sums over all micro-batches, which last until the next call. Collective.

        Raises: WaitTimeoutError and the like, naming the ranks that did not come.
        """
        exchange = self._exchange
        assert exchange is not None, "begin() comes first"
        if self._world is None:
            (sums,) = self._sums.values()
            return self._as_complex(sums)
        if self._vector is None or exchange.num_terms > self._num_windows:
            self._close_vector()
            self._num_windows = max(self._world.size, exchange.num_terms)
            self._vector = make_tree_vector(
                self._world, self._likes, self._num_windows, self._owners_of_sums
            )
        own = [self._sums[node] for node in exchange.nodes[self._world.rank]]
        sums = self._vector.reduce(own, exchange)
        self.is_finite = self._vector.is_finite
        return self._as_complex(sums)

    def close(self) -> None:
        """Drop the memory of the sums. Collective."""
        self.clear()
        self._close_vector()

    def _close_vector(self) -> None:
        if self._vector is not None:
            self._vector.close()
            self._vector = None

    def _as_real(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """View complex tensors as real: PyTorch's sum of two complex ones multiplies by one, which
        changes signs of zeros and infinite parts, where other kernels add."""
        if not self._complex:
            return list(tensors)
        return [
            torch.view_as_real(each.detach().resolve_conj()) if each.is_complex() else each
            for each in tensors
        ]

    def _as_complex(self, tensors: list[Tensor]) -> list[Tensor]:
        viewed = list(tensors)
        for place in self._complex:
            viewed[place] = torch.view_as_complex(viewed[place])
        return viewed


def add_leaf(
    tree: SummationTree, sums: dict[Subtree, list[Tensor]], leaf: int, tensors: list[Tensor]
) -> None:
    """Add the tensors of a leaf, which are changed, to the partial sums that a rank has."""
    node, root = tree.climb(Subtree(0, leaf)), tree.root
    while node != root and node.sibling in sums:
        other = sums.pop(node.sibling)
        torch._foreach_add_(other, tensors)  # either order gives the same bits
        tensors, node = other, tree.climb(node.parent)
    sums[node] = tensors
