"""Vectors that ranks sum in the order of a `SummationTree`: over messages, or in shared memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.comm.group import Group
from phalanx.comm.layout import CACHE_LINE_BYTES, aligned_starts_of, share_of
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.summation_tree import ADD, Exchange
from phalanx.torch_backend.tensors import buffer_of, dtype_of, is_usable_in_place


class TreeLayout:
    """Places of the tensors of one type in a flat vector."""

    def __init__(self, likes: Sequence[Tensor], places: Sequence[int]) -> None:
        """likes: tensors of their shapes. places: of these tensors in the lists."""
        self.places, self._likes, self.dtype = places, likes, likes[0].dtype
        self.sizes = [like.numel() for like in likes]
        alignment = CACHE_LINE_BYTES // likes[0].itemsize  # as of tensors by themselves
        self.starts = aligned_starts_of(self.sizes, alignment)
        self.num_elements = self.starts[-1]

    def views_of(self, vector: Tensor) -> list[Tensor]:
        """Return the tensors that lie in `vector`, (num_elements,)."""
        return [
            vector[start : start + like.numel()].view(like.shape)
            for start, like in zip(self.starts, self._likes, strict=False)
        ]


class TreeVector(ABC):
    """Tensors of one type, as a flat vector of which each rank sums a slice."""

    is_finite: bool | None = None
    """Whether all of the last sums are; None where they were not checked."""

    def __init__(self, layout: TreeLayout) -> None:
        self.layout = layout

    @abstractmethod
    def reduce(self, own: Sequence[Sequence[Tensor]], exchange: Exchange) -> list[Tensor]:
        """Return the sums. own: the lists of this rank's nodes. Collective."""

    def close(self) -> None:  # noqa: B027  # memory of the process's own
        """Drop the memory. Collective."""


def make_tree_vector(world: World, layout: TreeLayout, num_windows: int) -> TreeVector:
    """Return a vector in shared memory where all ranks are on one node and have such, for exchanges
    of at most `num_windows` terms; else one over messages. Collective."""
    if world.on_one_node:
        buffer = FlatGradBuffer.join(
            world,
            layout.sizes,
            dtype_of(layout.dtype),
            starts=layout.starts[:-1],
            num_elements=layout.num_elements,
            num_vectors=1,
            num_windows=num_windows,
        )
        if buffer is not None:
            return SharedTreeVector(layout, buffer, world.rank)
    return MessageTreeVector(layout, world.group)


class MessageTreeVector(TreeVector):
    """Vector of this rank's own: any number of nodes."""

    def __init__(self, layout: TreeLayout, group: Group) -> None:
        super().__init__(layout)
        self._group = group
        size, length = group.size, layout.num_elements
        self._slices = [share_of(rank, size, length) for rank in range(size)]
        self._total = torch.zeros(length, dtype=layout.dtype)
        self._views = layout.views_of(self._total)

    def reduce(self, own: Sequence[Sequence[Tensor]], exchange: Exchange) -> list[Tensor]:
        group, total = self._group, self._total
        mine = self._slices[group.rank]
        flat = total.new_zeros(len(own), len(total))
        for row, tensors in zip(flat, own, strict=True):
            for view, place in zip(self.layout.views_of(row), self.layout.places, strict=True):
                view.copy_(tensors[place])
        parts = [flat[:, cut.start : cut.stop].contiguous() for cut in self._slices]
        terms = [total.new_empty(len(nodes), len(mine)) for nodes in exchange.nodes]
        group.all_to_all(list(map(buffer_of, terms)), list(map(buffer_of, parts)))
        sums = evaluate([term for rows in terms for term in rows], exchange.expression)
        pieces = [total[cut.start : cut.stop] for cut in self._slices]
        pieces[group.rank].copy_(sums)
        outputs = list(map(buffer_of, pieces))
        group.all_gather(outputs, outputs[group.rank])
        return self._views


class SharedTreeVector(TreeVector):
    """Vector in memory that the ranks of one node share: all read the sums from one place."""

    def __init__(self, layout: TreeLayout, buffer: FlatGradBuffer, rank: int) -> None:
        """buffer: of this layout, with one vector, for the sums."""
        super().__init__(layout)
        self._buffer, self._rank = buffer, rank
        self._views = layout.views_of(torch.from_numpy(buffer.vectors[0]).view(layout.dtype))

    def reduce(self, own: Sequence[Sequence[Tensor]], exchange: Exchange) -> list[Tensor]:
        parts = [plain(tensors[place]) for tensors in own for place in self.layout.places]
        num_terms = exchange.num_terms
        self.is_finite = self._buffer.sum_in_order(
            [part.data_ptr() for part in parts],
            first=exchange.first_of(self._rank),
            num_own=len(own),
            num_terms=num_terms,
            expression=[num_terms if item == ADD else item for item in exchange.expression],
        )
        return self._views

    def close(self) -> None:
        self._views.clear()
        self._buffer.close()


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its values, one after the other."""
    if not is_usable_in_place(tensor):
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor


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
