"""Fixed binary tree in whose order gradients of micro-batches are summed. Pure.

Floating-point sums depend on their order. Here it depends on the number of micro-batches alone:
leaf i is micro-batch i of the global batch, node (level, number) covers leaves number · 2^level to
(number + 1) · 2^level, and its value is that of its left half plus that of its right half; a half
without samples adds nothing. Whoever holds all leaves of a node may add them up, and the sums of
nodes are exchanged in place of leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

ADD = -1
"""Item of a postfix expression: add the two values before."""


class Subtree(NamedTuple):
    """Part of the tree; level 0 are leaves."""

    level: int
    number: int
    """Place in its level, from the left."""

    @property
    def parent(self) -> Subtree:
        return Subtree(self.level + 1, self.number // 2)

    @property
    def sibling(self) -> Subtree:
        return Subtree(self.level, self.number ^ 1)

    @property
    def children(self) -> tuple[Subtree, Subtree]:
        return Subtree(self.level - 1, 2 * self.number), Subtree(
            self.level - 1, 2 * self.number + 1
        )


class SummationTree:
    """Tree over the micro-batches of one global batch that have samples."""

    def __init__(self, leaves: Collection[int], num_leaves: int) -> None:
        """leaves: numbers of those with samples. num_leaves: of a full global batch."""
        self._leaves = sorted(leaves)
        self._height = max(0, num_leaves - 1).bit_length()

    @property
    def root(self) -> Subtree:
        return Subtree(self._height, 0)

    @cached_property
    def _filled(self) -> set[Subtree]:
        """Nodes that cover a leaf."""
        return {
            Subtree(level, leaf >> level)
            for level in range(self._height + 1)
            for leaf in self._leaves
        }

    def climb(self, node: Subtree) -> Subtree:
        """Return the highest node of the same value."""
        while node != self.root and node.sibling not in self._filled:
            node = node.parent
        return node

    def subtrees(self, leaves: Collection[int]) -> list[Subtree]:
        """Return the fewest nodes whose values can be made of these leaves, from left to right."""
        held: set[Subtree] = set()
        for leaf in leaves:
            node = self.climb(Subtree(0, leaf))
            if Subtree(0, leaf) not in self._filled:
                continue
            while node.sibling in held and node != self.root:
                held.remove(node.sibling)
                node = self.climb(node.parent)
            held.add(node)
        return sorted(held, key=lambda node: node.number << node.level)

    def expression(self, nodes: Sequence[Subtree]) -> list[int]:
        """Return the postfix expression of the root's value: numbers of `nodes`, and ADD.

        Raises: ValueError when the nodes do not cover each leaf once.
        """
        numbers = {node: number for number, node in enumerate(nodes)}
        expression = list(self._visit(self.root, numbers))
        if sorted(item for item in expression if item != ADD) != list(range(len(nodes))):
            raise ValueError(f"{nodes} do not cover the leaves {self._leaves} once")
        return expression

    def _visit(self, node: Subtree, numbers: dict[Subtree, int]) -> Iterator[int]:
        if node in numbers:
            yield numbers[node]
            return
        if node.level == 0 and node in self._filled:
            raise ValueError(f"nothing covers leaf {node.number}")
        halves = [half for half in node.children if half in self._filled] if node.level else []
        for half in halves:
            yield from self._visit(half, numbers)
        if len(halves) == 2:
            yield ADD


class Exchange(NamedTuple):
    """Partial sums that each rank has when all micro-batches are computed, and what they make."""

    tree: SummationTree
    nodes: tuple[tuple[Subtree, ...], ...]
    """Nodes by rank."""
    expression: tuple[int, ...]
    """Expression of the nodes of all ranks, in their order, as `SummationTree.expression`."""

    @property
    def num_terms(self) -> int:
        return sum(map(len, self.nodes))

    def first_of(self, rank: int) -> int:
        """Return the number of the first node of `rank`, or where it would be."""
        return sum(map(len, self.nodes[:rank]))


@lru_cache(maxsize=64)
def schedule_exchange(
    owners: tuple[tuple[int, ...], ...], leaves: frozenset[int], num_leaves: int
) -> Exchange:
    """owners: the leaves of each rank. leaves: those that have samples. Pure."""
    tree = SummationTree(leaves, num_leaves)
    nodes = tuple(tuple(tree.subtrees(own)) for own in owners)
    every = [node for own in nodes for node in own]
    return Exchange(tree, nodes, tuple(tree.expression(every)))
