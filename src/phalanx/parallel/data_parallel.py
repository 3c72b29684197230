"""Data parallelism for any model: gradients are averaged while the backward pass runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from phalanx.comm.world import World
from phalanx.gradients.buckets import largest_bucket_bytes, plan_buckets
from phalanx.gradients.gradient_buckets import Bucket, GradientBuckets, visible_memory
from phalanx.torch_backend.tensors import buffer_of


class DataParallel(nn.Module):
    """`module`, with every parameter's gradient the mean over all ranks once backward returns.

    It is the mean of the ranks' own means, as with PyTorch's DDP: where ranks have batches of
    different sizes each rank counts as much as any other, not each sample.

    Gradients live in memory that the ranks of a node share and are summed where they lie, in the
    order of the ranks: the same bits on every rank. A bucket is reduced as soon as its last
    gradient is there; buckets follow the order in which gradients came in the first backward pass.
    All ranks must use the module alike; a parameter that a rank does not use counts as zeros there,
    but in every pass each rank must use one at least: the others wait for it until the timeout.

    For example:

        model = DataParallel(Net())
        for images, labels in batches_of_this_rank:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()

    Cost of a step with n bytes of gradients and p ranks: n bytes copied into the buckets, then
    2n bytes of memory traffic a rank.
    Source: Li et al. 2020, "PyTorch Distributed", doi:10.14778/3415478.3415530, for the buckets.
    """

    def __init__(
        self,
        module: nn.Module,
        world: World | None = None,
        *,
        bucket_bytes: int | None = None,
        broadcast_buffers: bool = True,
    ) -> None:
        """world: the ranks; None: those that the launcher started. bucket_bytes: of the largest
        bucket; None: as the cache allows. Every rank gets rank 0's parameters and buffers.
        Collective.

        Raises: ValueError when no parameter wants a gradient, or one is not in CPU memory.
        """
        super().__init__()
        self.module = module
        self._trained = [p for p in module.parameters() if p.requires_grad]
        _check(self._trained)
        world = world or World.create()
        self._group = world.group
        self._broadcasts = broadcast_buffers
        self._bucket_bytes = bucket_bytes or largest_bucket_bytes(
            self._group.size, world.settings.cache_bytes
        )
        self._is_synchronised, self._is_running = True, False
        self._ready_order: list[nn.Parameter] = []
        self._order_is_known = False
        self._broadcast([*module.parameters(), *module.buffers()])
        self._make_buckets(range(len(self._trained) - 1, -1, -1))  # backward goes backwards
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._mark_param_ready) for p in self._trained
        ]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; in training, broadcast rank 0's buffers first if so configured."""
        if self.training and torch.is_grad_enabled():
            if self._ready_order and not self._order_is_known:
                self._follow_ready_order()
            if self._broadcasts and self._is_synchronised:
                self._broadcast(list(self.module.buffers()))
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally; the next backward pass outside sums them over the ranks."""
        before, self._is_synchronised = self._is_synchronised, False
        try:
            yield
        finally:
            self._is_synchronised = before

    def close(self) -> None:
        """Remove the hooks and drop the gradients."""
        for hook in self._hooks:
            hook.remove()
        for parameter in self._trained:
            parameter.grad = None
        del self._buckets

    def _make_buckets(self, order: Sequence[int]) -> None:
        plan = plan_buckets(
            [p.nbytes for p in self._trained],
            [str(p.dtype) for p in self._trained],
            order,
            self._bucket_bytes,
        )
        self._buckets = GradientBuckets(self._trained, plan, visible_memory(self._group))

    def _follow_ready_order(self) -> None:
        """Rebuild the buckets in the order in which rank 0's gradients became ready."""
        self._order_is_known = True
        numbers = {p: number for number, p in enumerate(self._trained)}
        order = self._group.share([numbers[p] for p in dict.fromkeys(self._ready_order)])
        unused = [number for number in range(len(self._trained)) if number not in set(order)]
        self._make_buckets([*order, *unused])

    def _mark_param_ready(self, parameter: Tensor) -> None:
        """Record that a gradient is ready; called by the backward pass."""
        if not self._is_synchronised:
            return
        assert isinstance(parameter, nn.Parameter)
        if not self._is_running:
            self._is_running = True
            self._buckets.begin()
            Variable._execution_engine.queue_callback(self._finish_backward)
        if not self._order_is_known:
            self._ready_order.append(parameter)
        self._reduce(self._buckets.mark_param_ready(parameter))

    def _finish_backward(self) -> None:
        """End the backward pass: parameters without a gradient count as zeros."""
        self._is_running = False
        self._reduce(self._buckets.flush())

    def _reduce(self, buckets: Sequence[Bucket]) -> None:
        if self._group.size > 1:
            for bucket in buckets:
                divisor = float(self._group.size)
                self._group.all_reduce(buffer_of(bucket.values), divisor=divisor)

    @torch.no_grad()
    def _broadcast(self, tensors: Sequence[Tensor]) -> None:
        if self._group.size == 1:
            return
        for tensor in tensors:
            values = tensor.contiguous()
            self._group.broadcast(buffer_of(values), root=0)
            if values.data_ptr() != tensor.data_ptr():
                tensor.copy_(values)


def _check(parameters: Sequence[nn.Parameter]) -> None:
    if not parameters:
        raise ValueError("the module has no parameter that wants a gradient: nothing to reduce")
    for parameter in parameters:
        if parameter.device.type != "cpu":
            raise ValueError(
                f"a parameter is on {parameter.device}; DataParallel sums in CPU memory: use "
                'DistributedDataParallel on backend "mpi" for it'
            )
