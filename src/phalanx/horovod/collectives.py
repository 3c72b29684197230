"""Horovod's collectives: of tensors on any device, with gradients, blocking or by handles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import ReduceOp, Work

from phalanx.errors import UserError
from phalanx.horovod.ranks import joined

Result = TypeVar("Result")
Average, Sum, Product = ReduceOp.AVG, ReduceOp.SUM, ReduceOp.PRODUCT
Min, Max = ReduceOp.MIN, ReduceOp.MAX


class Handle(Generic[Result]):
    """A collective in flight, or several, for `synchronize` and `poll`."""

    def __init__(self, works: Sequence[Work], finish: Callable[[], Result]) -> None:
        """finish: makes the result once all works are complete."""
        self.works, self.finish = works, finish


class NoneCompressor:
    """Compression that sends tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor to send, and its type for `decompress`.

        Args:
            tensor: Tensor that is to be reduced.
        """
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the received tensor in its first type.

        Args:
            tensor: Tensor as it was received.
            dtype: Type that `compress` returned.
        """
        return tensor if tensor.dtype == dtype else tensor.to(dtype)


class FP16Compressor(NoneCompressor):
    """Compression that sends floating point tensors in 16 bits."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
        """Return the tensor in float16, and its type for `decompress`.

        Args:
            tensor: Tensor that is to be reduced.
        """
        return tensor.half() if tensor.is_floating_point() else tensor, tensor.dtype


class Compression:
    """Kinds of compression of what is sent: `none`, `fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor


def synchronize(handle: Handle[Result]) -> Result:
    """Wait for a collective and return its result.

    Args:
        handle: As a call that ends in `_async` or `_async_` returned it.
    """
    for work in handle.works:
        work.wait()
    return handle.finish()


def poll(handle: Handle[Any]) -> bool:
    """Return whether a collective is complete, so that `synchronize` will not wait.

    Args:
        handle: As a call that ends in `_async` or `_async_` returned it.
    """
    return all(work.is_completed() for work in handle.works)


def choose_op(op: Any, average: bool | None) -> Any:
    """Return the operation that `op`, or the older `average`, asks for: Average by default."""
    if op is not None and average is not None:
        raise UserError("hvd: op= replaces average=; give one of them")
    if average is not None:
        warnings.warn("hvd: average= is Horovod's old name; give op=", FutureWarning, stacklevel=3)
        return Average if average else Sum
    return Average if op is None else op


def refuse_process_set(process_set: object) -> None:
    """Raise UserError for any set but all ranks."""
    if process_set is not None:
        raise UserError(
            "hvd: process_set= is not supported: leave it out for all ranks, or use groups of "
            "torch.distributed on backend mpi (new_group)"
        )


def _options(kind: Callable[[], Any], **values: Any) -> Any:
    options = kind()
    for name, value in {"asyncOp": True, **values}.items():
        setattr(options, name, value)
    return options


def _scale(tensor: Tensor, factor: float) -> None:
    """Multiply in place: integers in float64, rounded towards zero, half types in float32."""
    if factor == 1.0:
        return
    if tensor.dtype.itemsize > 2 and (tensor.is_floating_point() or tensor.is_complex()):
        tensor.mul_(factor)
    else:
        wide = torch.float32 if tensor.is_floating_point() else torch.float64
        tensor.copy_(tensor.to(wide).mul_(factor))


def _grouped(handles: Sequence[Handle[Tensor]]) -> Handle[list[Tensor]]:
    works = [work for handle in handles for work in handle.works]
    return Handle(works, lambda: [handle.finish() for handle in handles])


def _detached_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


# -- allreduce -------------------------------------------------------------------------------------


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> Handle[Tensor]:
    """Begin to reduce a tensor over all ranks in place; it must not be touched before
    `synchronize`.

    Args:
        tensor: Tensor of the same shape and type on every rank.
        average: Horovod's older name for `op`: True is Average, False is Sum.
        name: Not needed: calls of the ranks match by their order.
        op: Average, Sum, Min, Max or Product. None: Average.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        process_set: Refused: all ranks take part.

    Returns:
        Handle of the tensor.

    Raises:
        UserError: For a process set, and for `op` and `average` together.
    """
    refuse_process_set(process_set)
    op, group, target = choose_op(op, average), joined().group, tensor.detach()
    _scale(target, prescale_factor)
    work = group.allreduce([target], _options(c10d.AllreduceOptions, reduceOp=op))

    def finish() -> Tensor:
        _scale(target, postscale_factor)
        return tensor

    return Handle([work], finish)


def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle[Tensor]:
    """Begin `allreduce`, without its gradient.

    Args:
        tensor: Tensor of the same shape and type on every rank.
        *args: Further arguments of `allreduce_async_`.
        **kwargs: Further keyword arguments of `allreduce_async_`.
    """
    return allreduce_async_(_detached_copy(tensor), *args, **kwargs)


def allreduce_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Reduce a tensor over all ranks in place, and return it. Collective.

    Args:
        tensor: Tensor of the same shape and type on every rank.
        *args: Further arguments of `allreduce_async_`.
        **kwargs: Further keyword arguments of `allreduce_async_`.
    """
    return synchronize(allreduce_async_(tensor, *args, **kwargs))


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, arguments: dict[str, Any]) -> Tensor:
        ctx.arguments = arguments
        return synchronize(allreduce_async(tensor, **arguments))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return synchronize(allreduce_async(gradients[0], **ctx.arguments)), None


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001
    compression: type[NoneCompressor] = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: object = None,
) -> Tensor:
    """Return the reduction of a tensor over all ranks, which has a gradient. Collective.

    Args:
        tensor: Tensor of the same shape and type on every rank.
        average: Horovod's older name for `op`: True is Average, False is Sum.
        name: Not needed: calls of the ranks match by their order.
        compression: Compression.none, or Compression.fp16.
        op: Average, Sum, Min, Max or Product. None: Average.
        prescale_factor: Factor before the reduction.
        postscale_factor: Factor after it.
        process_set: Refused: all ranks take part.

    Raises:
        UserError: For a process set, and for `op` and `average` together.
    """
    compressed, dtype = compression.compress(tensor)
    arguments = {
        "op": choose_op(op, average),
        "prescale_factor": prescale_factor,
        "postscale_factor": postscale_factor,
        "process_set": process_set,
    }
    return compression.decompress(_apply(_AllReduce, compressed, arguments), dtype)


def grouped_allreduce(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Return `allreduce` of each tensor. Collective.

    Args:
        tensors: Tensors, each of the same shape and type on every rank.
        *args: Further arguments of `allreduce`.
        **kwargs: Further keyword arguments of `allreduce`.
    """
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def grouped_allreduce_async(
    tensors: Sequence[Tensor], *args: Any, **kwargs: Any
) -> Handle[list[Tensor]]:
    """Begin `grouped_allreduce`, without its gradient.

    Args:
        tensors: Tensors, each of the same shape and type on every rank.
        *args: Further arguments of `allreduce_async_`.
        **kwargs: Further keyword arguments of `allreduce_async_`.
    """
    return _grouped([allreduce_async(tensor, *args, **kwargs) for tensor in tensors])


def grouped_allreduce_async_(
    tensors: Sequence[Tensor], *args: Any, **kwargs: Any
) -> Handle[list[Tensor]]:
    """Begin `grouped_allreduce_`; the tensors must not be touched before `synchronize`.

    Args:
        tensors: Tensors, each of the same shape and type on every rank.
        *args: Further arguments of `allreduce_async_`.
        **kwargs: Further keyword arguments of `allreduce_async_`.
    """
    return _grouped([allreduce_async_(tensor, *args, **kwargs) for tensor in tensors])


def grouped_allreduce_(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce each tensor in place, and return them. Collective.

    Args:
        tensors: Tensors, each of the same shape and type on every rank.
        *args: Further arguments of `allreduce_async_`.
        **kwargs: Further keyword arguments of `allreduce_async_`.
    """
    return synchronize(grouped_allreduce_async_(tensors, *args, **kwargs))


# -- allgather and broadcast -----------------------------------------------------------------------


def _row_counts(tensor: Tensor) -> list[int]:
    """Return the length of every rank's tensor. Collective."""
    world, group = joined()
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(world.size)]
    group.allgather([counts], [torch.tensor([len(tensor)])]).wait()
    return [int(count) for count in counts]


def allgather_async(
    tensor: Tensor,
    name: str | None = None,  # noqa: ARG001
    process_set: object = None,
) -> Handle[Tensor]:
    """Begin `allgather`, without its gradient; the ranks' lengths are exchanged at once.

    Args:
        tensor: Tensor of the same shape and type on every rank but for the first dimension.
        name: Not needed: calls of the ranks match by their order.
        process_set: Refused: all ranks take part.

    Raises:
        UserError: For a process set, and for a tensor without dimensions.
    """
    refuse_process_set(process_set)
    if tensor.dim() == 0:
        raise UserError("hvd.allgather joins tensors along their first dimension: give (1,)")
    parts = [tensor.new_empty((count, *tensor.shape[1:])) for count in _row_counts(tensor)]
    work = joined().group.allgather(
        [parts], [tensor.detach().contiguous()], _options(c10d.AllgatherOptions)
    )
    return Handle([work], lambda: torch.cat(parts))


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.length = len(tensor)
        return synchronize(allgather_async(tensor))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        counts = _row_counts(gradients[0][: ctx.length])
        start = sum(counts[: joined().world.rank])
        return allreduce(gradients[0])[start : start + ctx.length]


def allgather(
    tensor: Tensor,
    name: str | None = None,  # noqa: ARG001
    process_set: object = None,
) -> Tensor:
    """Return the tensors of all ranks, joined along the first dimension in the order of the ranks;
    the result has a gradient. Collective.

    Args:
        tensor: Tensor of the same shape and type on every rank but for the first dimension.
        name: Not needed: calls of the ranks match by their order.
        process_set: Refused: all ranks take part.

    Raises:
        UserError: For a process set, and for a tensor without dimensions.
    """
    refuse_process_set(process_set)
    return _apply(_AllGather, tensor)


def grouped_allgather(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Return `allgather` of each tensor. Collective.

    Args:
        tensors: Tensors, each of the same shape and type on every rank but for the first dimension.
        *args: Further arguments of `allgather`.
        **kwargs: Further keyword arguments of `allgather`.
    """
    return [allgather(tensor, *args, **kwargs) for tensor in tensors]


def grouped_allgather_async(
    tensors: Sequence[Tensor], *args: Any, **kwargs: Any
) -> Handle[list[Tensor]]:
    """Begin `grouped_allgather`, without its gradient.

    Args:
        tensors: Tensors, each of the same shape and type on every rank but for the first dimension.
        *args: Further arguments of `allgather`.
        **kwargs: Further keyword arguments of `allgather`.
    """
    return _grouped([allgather_async(tensor, *args, **kwargs) for tensor in tensors])


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,  # noqa: ARG001
    process_set: object = None,
) -> Handle[Tensor]:
    """Begin `broadcast_`; the tensor must not be touched before `synchronize`.

    Args:
        tensor: Tensor of the same shape and type on every rank.
        root_rank: Rank whose values all ranks get.
        name: Not needed: calls of the ranks match by their order.
        process_set: Refused: all ranks take part.
    """
    refuse_process_set(process_set)
    options = _options(c10d.BroadcastOptions, rootRank=root_rank)
    return Handle([joined().group.broadcast([tensor.detach()], options)], lambda: tensor)


def broadcast_async(tensor: Tensor, root_rank: int, *args: Any, **kwargs: Any) -> Handle[Tensor]:
    """Begin `broadcast`, without its gradient.

    Args:
        tensor: Tensor of the same shape and type on every rank.
        root_rank: Rank whose values all ranks get.
        *args: Further arguments of `broadcast`.
        **kwargs: Further keyword arguments of `broadcast`.
    """
    return broadcast_async_(_detached_copy(tensor), root_rank, *args, **kwargs)


def broadcast_(tensor: Tensor, root_rank: int, *args: Any, **kwargs: Any) -> Tensor:
    """Fill a tensor on every rank with that of `root_rank`, and return it. Collective.

    Args:
        tensor: Tensor of the same shape and type on every rank.
        root_rank: Rank whose values all ranks get.
        *args: Further arguments of `broadcast`.
        **kwargs: Further keyword arguments of `broadcast`.
    """
    return synchronize(broadcast_async_(tensor, root_rank, *args, **kwargs))


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int) -> Tensor:
        ctx.root_rank = root_rank
        return synchronize(broadcast_async(tensor, root_rank))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        mean = allreduce(gradients[0])
        return mean if joined().world.rank == ctx.root_rank else torch.zeros_like(mean), None


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,  # noqa: ARG001
    process_set: object = None,
) -> Tensor:
    """Return the tensor of `root_rank`, with a gradient. Collective.

    Args:
        tensor: Tensor of the same shape and type on every rank.
        root_rank: Rank whose values all ranks get.
        name: Not needed: calls of the ranks match by their order.
        process_set: Refused: all ranks take part.
    """
    refuse_process_set(process_set)
    return _apply(_Broadcast, tensor, root_rank)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    apply: Any = function.apply
    result: Tensor = apply(*arguments)
    return result


def barrier(process_set: object = None) -> None:
    """Wait until every rank has arrived. Collective.

    Args:
        process_set: Refused: all ranks take part.
    """
    refuse_process_set(process_set)
    joined().group.barrier().wait()
