"""Sums of lists of tensors in the order of a tree: over messages, or in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.comm.buffer import is_usable_in_place
from phalanx.comm.dtypes import dtype_of
from phalanx.comm.group import Group
from phalanx.comm.layout import CACHE_LINE_BYTES, aligned_starts_of, by_owner, share_of
from phalanx.comm.world import World
from phalanx.gradients.flat_grad_buffer import FlatGradBuffer
from phalanx.gradients.summation_tree import ADD, Exchange
from phalanx.torch_backend.tensors import buffer_of


def make_tree_vectors(
    world: World,
    likes: Sequence[Tensor],
    num_windows: int,
    owners: Sequence[int | None] | None = None,
) -> Sequence[SharedTreeVector | MessageTreeVector]:
    """Return one vector in shared memory where all ranks are on one node and have such, for
    exchanges of at most `num_windows` terms; else some over messages. Collective.

    likes: real tensors of the shapes and types of a list. owners: of each, the only rank that needs
    its sum, None where all do; in shared memory all have all.
    """
    if world.on_one_node:
        buffer = FlatGradBuffer.join(
            world,
            [like.nbytes for like in likes],
            "uint8",
            alignment=CACHE_LINE_BYTES,
            num_vectors=1,
            num_windows=num_windows,
        )
        if buffer is not None:
            return [SharedTreeVector(likes, buffer, world.rank)]
    return message_vectors(range(len(likes)), likes, world.group, owners or [None] * len(likes))


def message_vectors(
    places: Sequence[int],
    likes: Sequence[Tensor],
    group: Group,
    owners: Sequence[int | None],
) -> list[MessageTreeVector]:
    """Return vectors for these places of a list, one for each type."""
    kinds: dict[tuple[torch.dtype, bool], list[int]] = {}
    for place in places:
        kinds.setdefault((likes[place].dtype, owners[place] is None), []).append(place)
    vectors = []
    for own in kinds.values():
        owned = [owner for place in own if (owner := owners[place]) is not None]
        vectors.append(MessageTreeVector(own, [likes[place] for place in own], group, owned))
    return vectors


class SharedTreeVector:
    """Vector in memory that the ranks of one node share: all read the sums from one place."""

    is_finite: bool | None = None
    """True if all of the last sums are, the same on every rank."""
    is_divided = False

    def __init__(self, likes: Sequence[Tensor], buffer: FlatGradBuffer, rank: int) -> None:
        """buffer: of bytes, with one vector, for the sums."""
        self.places = range(len(likes))
        self._buffer, self._rank = buffer, rank
        self._dtypes = [dtype_of(like.dtype).code for like in likes]
        total = torch.from_numpy(buffer.vectors[0])
        self._views = [
            total[start : start + like.nbytes].view(like.dtype).view(like.shape)
            for start, like in zip(buffer.starts, likes, strict=True)
        ]

    def reduce(self, own: Sequence[Sequence[Tensor]], exchange: Exchange) -> list[Tensor]:
        """Return the sums. own: the tensors of each of this rank's nodes. Collective."""
        parts = [plain(tensor) for tensors in own for tensor in tensors]
        num_terms = exchange.num_terms
        self.is_finite = self._buffer.sum_in_order(
            [part.data_ptr() for part in parts],
            self._dtypes,
            first=exchange.first_of(self._rank),
            num_own=len(own),
            num_terms=num_terms,
            expression=[num_terms if item == ADD else item for item in exchange.expression],
        )
        return self._views

    def close(self) -> None:
        """Drop the memory. Collective."""
        self._views.clear()
        self._buffer.close()


class MessageTreeVector:
    """Vector of this rank's own, of tensors of one type, of which each rank sums a slice: the
    tensors that it owns, or a share. Any number of nodes."""

    is_finite = None  # not checked

    def __init__(
        self, places: Sequence[int], likes: Sequence[Tensor], group: Group, owners: Sequence[int]
    ) -> None:
        """owners: of the likes; none: every rank is given all sums."""
        self.places, self.is_divided = places, bool(owners)
        """Places of the tensors in the lists; True if other ranks' sums are empty tensors."""
        self._likes, self._group, self._owners = likes, group, owners
        alignment = CACHE_LINE_BYTES // likes[0].itemsize  # same alignment as separate tensors
        sizes = [like.numel() for like in likes]
        if owners:
            self._starts, self._slices = by_owner(sizes, owners, group.size, alignment)
            self._length = self._slices[-1].stop
        else:
            *self._starts, self._length = aligned_starts_of(sizes, alignment)
            self._slices = [share_of(rank, group.size, self._length) for rank in range(group.size)]
            self._total = torch.zeros(self._length, dtype=likes[0].dtype, device="cpu")
            self._views = self._views_of(self._total)

    def _views_of(self, vector: Tensor) -> list[Tensor]:
        return [
            vector[start : start + like.numel()].view(like.shape)
            for start, like in zip(self._starts, self._likes, strict=True)
        ]

    def reduce(self, own: Sequence[Sequence[Tensor]], exchange: Exchange) -> list[Tensor]:
        """Return the sums, as `SharedTreeVector.reduce`."""
        group, like = self._group, self._likes[0]
        mine = self._slices[group.rank]
        flat = like.new_zeros(len(own), self._length)
        for row, tensors in zip(flat, own, strict=True):
            for view, tensor in zip(self._views_of(row), tensors, strict=True):
                view.copy_(tensor)
        parts = [flat[:, cut.start : cut.stop].contiguous() for cut in self._slices]
        terms = [like.new_empty(len(nodes), len(mine)) for nodes in exchange.nodes]
        group.all_to_all(list(map(buffer_of, terms)), list(map(buffer_of, parts)))
        sums = evaluate([term for rows in terms for term in rows], exchange.expression)
        return self._own_views(sums) if self._owners else self._gather(sums)

    def close(self) -> None:
        """Do nothing: the memory is of the process's own."""

    def _own_views(self, sums: Tensor) -> list[Tensor]:
        first, nothing = self._slices[self._group.rank].start, sums.new_empty(0, 2)
        return [
            sums[start - first : start - first + like.numel()].view(like.shape)
            if owner == self._group.rank
            else nothing
            for start, like, owner in zip(self._starts, self._likes, self._owners, strict=True)
        ]

    def _gather(self, sums: Tensor) -> list[Tensor]:
        rank = self._group.rank
        pieces = [self._total[cut.start : cut.stop] for cut in self._slices]
        pieces[rank].copy_(sums)
        outputs = list(map(buffer_of, pieces))
        self._group.all_gather(outputs, outputs[rank])
        return self._views


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its values, one after the other."""
    if not is_usable_in_place(tensor):
        tensor = tensor.resolve_neg().contiguous()
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
