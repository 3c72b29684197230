"""Gradient buckets, filled as backward passes make the gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor

from phalanx.comm.group import Group
from phalanx.comm.layout import starts_of


class Bucket:
    """Parameters whose gradients are contiguous in one piece of memory."""

    def __init__(self, number: int, parameters: Sequence[Tensor], memory: Tensor) -> None:
        """parameters: of one dtype; memory: (bytes,) uint8, as many as they have."""
        self.number, self.parameters = number, parameters
        self.num_pending = len(parameters)
        self.values: Tensor = memory.view(parameters[0].dtype)
        """(n,): all gradients."""
        starts = starts_of([parameter.numel() for parameter in parameters])
        self.views = {
            parameter: self.values[start : start + parameter.numel()].view(parameter.shape)
            for parameter, start in zip(parameters, starts, strict=False)
        }

    @property
    def shapes(self) -> list[Size]:
        return [parameter.shape for parameter in self.parameters]

    @torch.no_grad()
    def copy_in(self, parameter: Tensor) -> None:
        """Move the parameter's gradient into the bucket; a missing one counts as zeros."""
        view = self.views[parameter]
        if parameter.grad is None:
            view.zero_()
        elif parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
        parameter.grad = view


class GradientBuckets:
    """All buckets of a model, completed in their order.

    A bucket that is full earlier waits for those before it, so that all ranks reduce them alike.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        plan: Sequence[Sequence[int]],
        memory: Callable[[int], Tensor],
    ) -> None:
        """plan: numbers of the parameters of each bucket; memory: gives a bucket its bytes."""
        chosen = [[parameters[number] for number in numbers] for numbers in plan]
        self.buckets = [
            Bucket(number, some, memory(sum(p.nbytes for p in some)))
            for number, some in enumerate(chosen)
        ]
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        self.begin()

    def begin(self) -> None:
        """Begin a backward pass."""
        self._next = 0
        self._not_ready = dict.fromkeys(self._bucket_of)
        for bucket in self.buckets:
            bucket.num_pending = len(bucket.parameters)

    def mark_param_ready(self, parameter: Tensor) -> list[Bucket]:
        """Mark a gradient as ready; return the buckets that this completes."""
        bucket = self._bucket_of[parameter]
        bucket.copy_in(parameter)
        bucket.num_pending -= 1
        self._not_ready.pop(parameter, None)
        first = self._next
        while self._next < len(self.buckets) and self.buckets[self._next].num_pending <= 0:
            self._next += 1
        return self.buckets[first : self._next]

    def flush(self) -> list[Bucket]:
        """End the backward pass: take missing gradients as they are; return the remaining
        buckets."""
        for parameter in self._not_ready:
            self._bucket_of[parameter].copy_in(parameter)
        self._not_ready.clear()
        first, self._next = self._next, len(self.buckets)
        return self.buckets[first:]


def visible_memory(group: Group) -> Callable[[int], Tensor]:
    """Return an allocator of bucket memory that the node's other ranks can see, where there is
    such."""

    def allocate(num_bytes: int) -> Tensor:
        if group.shm is not None:
            try:
                return torch.from_numpy(group.shm.allocate(num_bytes, "uint8"))
            except OSError as error:
                warnings.warn(
                    f"no shared memory for a bucket of gradients ({error}): it is copied instead, "
                    "which is slower",
                    stacklevel=2,
                )
        return torch.zeros(num_bytes, dtype=torch.uint8)

    return allocate
