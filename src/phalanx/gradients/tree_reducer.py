"""Sums over the micro-batches of a global batch in an order that the ranks do not change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from phalanx.comm.group import Group
from phalanx.comm.layout import CACHE_LINE_BYTES, aligned_starts_of, share_of
from phalanx.gradients.summation_tree import ADD, Subtree, SummationTree
from phalanx.torch_backend.tensors import buffer_of


class Exchange(NamedTuple):
    """Partial sums that each rank has when all micro-batches are computed, and what they make."""

    nodes: tuple[tuple[Subtree, ...], ...]
    """By rank."""
    expression: tuple[int, ...]
    """Of the nodes of all ranks, in their order, as `SummationTree.expression`."""


@lru_cache(maxsize=64)
def plan_exchange(
    owners: tuple[tuple[int, ...], ...], leaves: frozenset[int], num_leaves: int
) -> Exchange:
    """owners: the leaves of each rank. leaves: those that have samples. Pure."""
    tree = SummationTree(leaves, num_leaves)
    nodes = tuple(tuple(tree.subtrees(own)) for own in owners)
    every = [node for own in nodes for node in own]
    return Exchange(nodes, tuple(tree.expression(every)))


class TreeReducer:
    """Reducer of lists of tensors, one list a micro-batch, in the order of a `SummationTree`.

        reducer.begin(owners, leaves)
        for leaf in own_leaves:
            reducer.add(leaf, tensors)
        sums = reducer.reduce()

    The sums have the same bits on every rank, and on any number of ranks. Half types are rounded
    after each addition.

    Cost: of a micro-batch an addition in place; a rank keeps at most log₂ of its micro-batches
    partial sums. Ranks that hold k of them send k slices to each peer and gather the sums: for
    ranks that share the micro-batches evenly as much as a reduce-scatter and an all-gather.
    """

    def __init__(self, likes: Sequence[Tensor], num_leaves: int, group: Group | None) -> None:
        """likes: tensors of the shapes and types of a list. num_leaves: micro-batches of a full
        global batch. group: None for a single process."""
        self._num_leaves, self._group = num_leaves, group
        self._tree = SummationTree((), num_leaves)
        self._sums: dict[Subtree, list[Tensor]] = {}
        places: dict[torch.dtype, list[int]] = {}
        for place, like in enumerate(likes):
            places.setdefault(like.dtype, []).append(place)
        self._vectors = [
            TreeVector([likes[place] for place in own], own, group)
            for own in places.values()
            if group is not None and group.size > 1
        ]

    def begin(self, owners: Sequence[Collection[int]], leaves: Collection[int]) -> None:
        """Begin a global batch. owners: the micro-batches of each rank; leaves: those that have
        samples; the same on all ranks."""
        self._tree = SummationTree(leaves, self._num_leaves)
        self._exchange = plan_exchange(
            tuple(map(tuple, owners)), frozenset(leaves), self._num_leaves
        )
        self._sums.clear()

    @torch.no_grad()
    def add(self, leaf: int, tensors: list[Tensor]) -> None:
        """Add what micro-batch `leaf` has made, and keep it: the tensors are changed."""
        node, root = self._tree.climb(Subtree(0, leaf)), self._tree.root
        while node != root and node.sibling in self._sums:
            other = self._sums.pop(node.sibling)
            torch._foreach_add_(other, tensors)  # in which order is the same
            tensors, node = other, self._tree.climb(node.parent)
        self._sums[node] = tensors

    @torch.no_grad()
    def reduce(self) -> list[Tensor]:
        """Return the sums over all micro-batches, which last until the next call. Collective.

        Raises: WaitTimeoutError and the like, naming the ranks that did not come.
        """
        if not self._vectors:
            (sums,) = self._sums.values()
            return sums
        assert self._group is not None, "which has made the vectors"
        own = [self._sums[node] for node in self._exchange.nodes[self._group.rank]]
        found: dict[int, Tensor] = {}
        for vector in self._vectors:
            found.update(zip(vector.places, vector.reduce(own, self._exchange), strict=True))
        self._sums.clear()
        return [found[place] for place in sorted(found)]


class TreeVector:
    """The tensors of one type, as a flat vector of which each rank sums a slice."""

    def __init__(self, likes: Sequence[Tensor], places: Sequence[int], group: Group) -> None:
        """places: of these tensors in the lists."""
        self.places, self._group = places, group
        alignment = CACHE_LINE_BYTES // likes[0].itemsize  # as of tensors by themselves
        starts = aligned_starts_of([like.numel() for like in likes], alignment)
        self._cuts = [
            slice(start, start + like.numel()) for start, like in zip(starts, likes, strict=False)
        ]
        size = group.size
        self._slices = [share_of(rank, size, starts[-1]) for rank in range(size)]
        self._total = torch.zeros(starts[-1], dtype=likes[0].dtype)
        self._views = [
            self._total[cut].view(like.shape) for cut, like in zip(self._cuts, likes, strict=True)
        ]

    def reduce(self, own: Sequence[Sequence[Tensor]], exchange: Exchange) -> list[Tensor]:
        """Return the sums. own: the lists of this rank's nodes. Collective."""
        group, total = self._group, self._total
        mine = self._slices[group.rank]
        flat = total.new_zeros(len(own), len(total))
        for row, tensors in zip(flat, own, strict=True):
            for cut, place in zip(self._cuts, self.places, strict=True):
                row[cut] = tensors[place].reshape(-1)
        parts = [flat[:, cut.start : cut.stop].contiguous() for cut in self._slices]
        terms = [total.new_empty(len(nodes), len(mine)) for nodes in exchange.nodes]
        group.all_to_all(list(map(buffer_of, terms)), list(map(buffer_of, parts)))
        sums = evaluate([term for rows in terms for term in rows], exchange.expression)
        pieces = [total[cut.start : cut.stop] for cut in self._slices]
        pieces[group.rank].copy_(sums)
        outputs = list(map(buffer_of, pieces))
        group.all_gather(outputs, outputs[group.rank])
        return self._views


def evaluate(terms: Sequence[Tensor], expression: Sequence[int]) -> Tensor:
    """Return the value of a postfix expression; terms that are added to are changed."""
    stack: list[Tensor] = []
    for item in expression:
        if item == ADD:
            last = stack.pop()
            stack[-1] += last
        else:
            stack.append(terms[item])
    (value,) = stack
    return value
