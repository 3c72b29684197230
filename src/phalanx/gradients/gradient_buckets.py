"""Gradient buckets, filled as backward passes make the gradients."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor

from phalanx.comm.group import Group
from phalanx.errors import UserError
from phalanx.gradients.reducer import give_views, layouts_of

GROWN = (
    "a gradient changed after it was summed over the ranks, for example by checkpointing with "
    "use_reentrant=True: use use_reentrant=False, or do not overlap sums with the backward pass"
)


class Bucket:
    """Parameters whose gradients are contiguous in one piece of memory."""

    def __init__(self, number: int, parameters: Sequence[Tensor], memory: Tensor) -> None:
        """parameters: of one dtype; memory: (bytes,) uint8, as many as they have."""
        self.number, self.parameters = number, parameters
        self.values: Tensor = memory.view(parameters[0].dtype)
        """(n,): all gradients."""
        self._layouts = layouts_of(parameters)
        self._views = [self.values.as_strided(*layout) for layout in self._layouts]
        self._given: list[Tensor] = []

    @property
    def shapes(self) -> list[Size]:
        return [parameter.shape for parameter in self.parameters]

    def begin(self) -> None:
        """Begin a backward pass, which may have begun with gradients of its own."""
        if not self._holds_given():
            self._given.clear()

    @torch.no_grad()
    def copy_in(self) -> None:
        """Copy the gradients into the bucket; missing ones count as zeros."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)

    @torch.no_grad()
    def copy_out(self) -> None:
        """Make every gradient what the bucket holds, in memory that nobody else sees: that of the
        last call where it is in use still, as after zero_grad(set_to_none=False)."""
        if self._given and self._holds_given():
            torch._foreach_copy_(self._given, self._views)
        else:
            self._given = give_views(self.parameters, self.values.clone(), self._layouts)

    def _holds_given(self) -> bool:
        gradients = [parameter.grad for parameter in self.parameters]
        return len(self._given) == len(gradients) and all(map(operator.is_, gradients, self._given))


class BucketOrder:
    """Order in which buckets are complete: one that is full earlier waits for those before it, so
    that all ranks reduce them alike."""

    def __init__(self, members: Sequence[Sequence[Tensor]]) -> None:
        """members: parameters of each bucket."""
        self._sizes = list(map(len, members))
        self._bucket_of = {one: number for number, some in enumerate(members) for one in some}
        self.begin()

    def begin(self) -> None:
        """Begin a backward pass."""
        self._next = 0
        self._not_ready, self._num_pending = set(self._bucket_of), list(self._sizes)

    def mark_ready(self, parameter: Tensor) -> range:
        """Mark a gradient as ready; return the buckets that the gradients before it completed, for
        which the program's own hooks, which may change them, have run.

        Raises: UserError for one whose bucket was returned.
        """
        first = self._next
        while self._next < len(self._sizes) and not self._num_pending[self._next]:
            self._next += 1
        bucket = self._bucket_of[parameter]
        if bucket < self._next:
            raise UserError(GROWN)
        if parameter in self._not_ready:
            self._not_ready.remove(parameter)
            self._num_pending[bucket] -= 1
        return range(first, self._next)

    def flush(self) -> range:
        """End the backward pass; return the remaining buckets."""
        first, self._next = self._next, len(self._sizes)
        return range(first, self._next)


def make_buckets(
    members: Sequence[Sequence[Tensor]], memory: Callable[[int], Tensor]
) -> list[Bucket]:
    """Return a bucket of the parameters of each. memory: gives a bucket its bytes."""
    return [
        Bucket(number, some, memory(sum(parameter.nbytes for parameter in some)))
        for number, some in enumerate(members)
    ]


def visible_memory(group: Group) -> Callable[[int], Tensor]:
    """Return an allocator of bucket memory that the node's other ranks can see, where there is
    such."""

    def allocate(num_bytes: int) -> Tensor:
        if group.shm is not None:
            try:
                return torch.from_numpy(group.shm.allocate(num_bytes, "uint8"))
            except OSError as error:
                warnings.warn(
                    f"no shared memory for a bucket of gradients ({error}): the bucket is copied "
                    "instead, which is slower",
                    stacklevel=2,
                )
        return torch.zeros(num_bytes, dtype=torch.uint8, device="cpu")

    return allocate
