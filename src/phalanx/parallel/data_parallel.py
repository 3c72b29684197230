"""Data parallelism for any model: gradients are averaged while the backward pass runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from phalanx.comm.join_world import report_binding
from phalanx.comm.world import World
from phalanx.gradients.bucketed_reducer import BucketedGradReducer
from phalanx.gradients.buckets import largest_bucket_bytes
from phalanx.gradients.compression.compressor import Uncompressed
from phalanx.parallel.world_group import broadcast_tensors
from phalanx.torch_backend.threads import share_cores


class DataParallel(nn.Module):
    """Module whose gradients are the means over all ranks once the backward pass returns.

    It is the mean of the ranks' own means, as with PyTorch's DDP: where ranks have batches of
    different sizes each rank counts as much as any other, not each sample.

    Gradients are summed in memory that the ranks of a node share, in the order of the ranks: the
    same bits on every rank. The program sees tensors of its own, to be changed and kept. A bucket
    is reduced as soon as its last gradient is ready; buckets follow the order in which gradients
    became ready in the first backward pass, which is reduced at its end. All ranks must use the
    module alike. A parameter that a rank does not use counts as zeros there, but in every pass each
    rank must use one at least: the others wait for it until the timeout.

    Every rank gets rank 0's parameters and buffers when it is made. Collective.

    Cost of a step with n bytes of gradients and p ranks: n bytes copied into the buckets, 2n bytes
    of memory traffic per rank, n bytes copied out. Buckets: Li et al. 2020, "PyTorch Distributed",
    doi:10.14778/3415478.3415530.

    Example::

        parallel = phalanx.DataParallel(model)
        for inputs, targets in batches_of_this_rank:
            optimizer.zero_grad()
            criterion(parallel(inputs), targets).backward()
            optimizer.step()

    Args:
        module: Module to train, in CPU memory.
        world: The ranks. None: those that the launcher started, which then share the cores of their
            node as those of backend `mpi` do.
        bucket_bytes: Size of the largest bucket, in bytes. None: as the processor's cache allows.
        broadcast_buffers: True to give all ranks rank 0's buffers before each forward pass in
            training.

    Raises:
        ValueError: If no parameter requires a gradient, or one is not in CPU memory.
    """

    def __init__(
        self,
        module: nn.Module,
        world: World | None = None,
        *,
        bucket_bytes: int | None = None,
        broadcast_buffers: bool = True,
    ) -> None:
        super().__init__()
        self.module = module
        trained = [p for p in module.parameters() if p.requires_grad]
        _check(trained)
        if world is None:
            world = World.create()
            report_binding(world)
            share_cores(world.local_size)
        self._group = world.group
        self._broadcasts, self._is_synchronised = broadcast_buffers, True
        broadcast_tensors(self._group, [*module.parameters(), *module.buffers()])
        # Registered before the reducer's hooks: the first gradient begins a reduction.
        self._hooks = [p.register_post_accumulate_grad_hook(self._begin) for p in trained]
        size = self._group.size
        self._reducer = BucketedGradReducer(
            world,
            trained,
            Uncompressed(),
            bucket_bytes=bucket_bytes or largest_bucket_bytes(size, world.settings.cache_bytes),
            overlaps=True,
            on_thread=False,
            divisor=float(size),
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; in training after broadcasting rank 0's buffers, if `broadcast_buffers`.

        Args:
            *args: Arguments of the module.
            **kwargs: Keyword arguments of the module.
        """
        is_trained = self.training and torch.is_grad_enabled()
        if is_trained and self._broadcasts and self._is_synchronised:
            broadcast_tensors(self._group, self.module.buffers())
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank alone, within a `with` block; the next backward pass
        outside sums them over the ranks.
        """
        before, self._is_synchronised = self._is_synchronised, False
        try:
            yield
        finally:
            self._is_synchronised = before

    def close(self) -> None:
        """Remove the hooks; the gradients stay."""
        for hook in self._hooks:
            hook.remove()
        self._reducer.close()

    def _begin(self, _: Tensor) -> None:
        """Begin to sum at the first gradient of a backward pass, which ends that."""
        if self._is_synchronised and not self._reducer.is_open:
            self._reducer.begin()
            Variable._execution_engine.queue_callback(self._reducer.flush)


def _check(parameters: Sequence[nn.Parameter]) -> None:
    if not parameters:
        raise ValueError("the module has no parameter that requires a gradient: nothing to reduce")
    for parameter in parameters:
        if parameter.device.type != "cpu":
            raise ValueError(
                f"a parameter is on {parameter.device}; DataParallel sums in CPU memory: use "
                'DistributedDataParallel on backend "mpi" for it'
            )
