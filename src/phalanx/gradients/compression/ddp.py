"""Compressed gradients under PyTorch's own DistributedDataParallel, on backend `mpi` or Gloo.

For example:

    model = DistributedDataParallel(Net())
    model.register_comm_hook(Compressed("int8"), reduce_bucket)

Annotations here are objects, not strings: DDP compares those of a hook.
"""

from contextlib import nullcontext
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Size, Tensor
from torch.futures import Future

from phalanx.gradients.compression.backends import TorchBackend
from phalanx.gradients.compression.make import make_compressor
from phalanx.torch_backend.work import gpus_of


class Compressed:
    """State of a DDP module's compression hook, one per module.

    Example::

        model = DistributedDataParallel(Net())
        model.register_comm_hook(Compressed("int8"), reduce_bucket)

    Args:
        name: fp16, bf16, int8, powersgd, topk or none.
        group: Process group of the module. None: the default group.
        powersgd_rank: Rank of PowerSGD's factors (Vogels et al. 2019, arXiv:1905.13727).
        topk_fraction: Fraction of the gradients that `topk` sends.
        seed: Seed of PowerSGD's first factors, the same on every rank.

    Raises:
        ValueError: For another name, or a value out of its range.
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup | None = None,
        *,
        powersgd_rank: int = 4,
        topk_fraction: float = 0.01,
        seed: int = 0,
    ) -> None:
        self.compressor = make_compressor(
            name, powersgd_rank=powersgd_rank, topk_fraction=topk_fraction, seed=seed
        )
        self._group = group
        self._shapes: dict[int, tuple[Size, ...]] = {}

    @cached_property
    def backend(self) -> TorchBackend:
        """Collectives of the group, which may be made after this."""
        return TorchBackend(self._group)

    def reduce(self, bucket: dist.GradBucket) -> Tensor:
        """Return the bucket, averaged over the ranks. DDP makes new buckets after the first step;
        the state of the old ones is dropped. Collective.

        Args:
            bucket: Bucket of gradients, as DDP gives it to a hook.
        """
        number = bucket.index()
        shapes = tuple(parameter.shape for parameter in bucket.parameters())
        if self._shapes.get(number) != shapes:
            self.compressor.prepare(number, shapes)
            self._shapes[number] = shapes
        values = bucket.buffer()
        on_host = values.cpu()  # itself where it is there; kernels and messages are of the host
        with nullcontext() if on_host is values else torch.device("cpu"):
            self.compressor.reduce(number, on_host, self.backend)
        on_host /= self.backend.size
        return values if on_host is values else values.copy_(on_host)


def reduce_bucket(state: Compressed, bucket: dist.GradBucket) -> Future[Tensor]:
    """Reduce a bucket, as a DDP communication hook. The result is complete on return; all ranks
    call it in the same order.

    Args:
        state: State of the module's hook.
        bucket: Bucket of gradients, as DDP gives it to a hook.

    Returns:
        Future of the bucket's mean over the ranks.
    """
    reduced: Future[Tensor] = Future(devices=gpus_of([bucket.buffer()]))
    reduced.set_result(state.reduce(bucket))
    return reduced
