"""The collectives that reduce: all_reduce, reduce, reduce_scatter, one tensor or several."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import (
    AllreduceOptions,
    ReduceOptions,
    ReduceScatterOptions,
)
from torch.autograd import profiler as torch_profiler
from torch.distributed import Work

from phalanx.comm.buffer import Buffer
from phalanx.comm.dtypes import ReduceOp
from phalanx.torch_backend.arguments import filled, one_list, only, same_length, strided
from phalanx.torch_backend.errors import ENDED, as_torch
from phalanx.torch_backend.process_group_base import ProcessGroupMPIBase
from phalanx.torch_backend.reduce_ops import Reduction, factor_of, reduction_of
from phalanx.torch_backend.sparse import MAX_DIMS, sum_sparse
from phalanx.torch_backend.tensors import TensorStaging, buffer_of, is_plain
from phalanx.torch_backend.work import CompletedWork


class ReductionsMixin(ProcessGroupMPIBase):
    """The reducing collectives of `ProcessGroupMPI`."""

    def allreduce(
        self,
        tensors: list[Tensor] | Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Work:
        if type(opts) is not AllreduceOptions:
            opts = filled(AllreduceOptions, opts, op=op, timeout=timeout)
        elif (
            not opts.asyncOp
            and not torch_profiler._is_profiler_enabled
            and type(tensors) is list
            and self._reduced_at_once(tensors, opts)
        ):
            return self._completed
        if type(tensors) is list and len(tensors) == 1 and tensors[0].is_sparse:
            return self._sum_sparse(tensors[0], opts)
        tensor = only(tensors, self, "all_reduce")
        is_bucket = self.buckets.consider(tensor)
        reduction, places = self._reduction(tensor, opts, "all_reduce")
        if reduction.scales:
            places.scale(tensor, factor_of(opts.reduceOp))
        call = partial(
            self._engine.all_reduce,
            places.updates(tensor),
            reduction.op,
            divisor=self.size() if reduction.is_average else 1.0,
            timeout_s=self._timeout_s(opts.timeout),
        )
        is_async = opts.asyncOp and not (is_bucket and self.buckets.at_once)
        work = self._run("all_reduce", call, is_async=is_async, results=[tensor], places=places)
        return CompletedWork([tensor]) if is_bucket and work is self._completed else work

    def _reduced_at_once(self, tensors: list[Tensor], opts: Any) -> bool:
        """The common case in few steps, each of which costs as much as the engine does: one plain
        tensor, and nothing in the queue. False: it is not that case."""
        if self._refusal is not None or len(tensors) != 1 or not is_plain(tensors[0]):
            return False
        tensor, timeout = tensors[0], opts.timeout
        try:
            reduction = reduction_of(tensor.dtype, hash(opts.reduceOp))
        except TypeError:
            return False
        if reduction.scales or not self._queue.begin():
            return False
        try:
            self._engine.all_reduce(
                buffer_of(tensor),
                reduction.op,
                divisor=self._engine.size if reduction.is_average else 1.0,
                timeout_s=timeout.total_seconds() if timeout.days >= 0 and timeout else None,
            )
        except ENDED as error:
            raise as_torch(error) from None
        finally:
            self._queue.end()
        return True

    def _sum_sparse(self, tensor: Tensor, opts: Any) -> Work:
        reduction, places = self._reduction(tensor, opts, "all_reduce")
        if reduction != Reduction(ReduceOp.SUM):
            raise TypeError(f"{self._where('all_reduce')}: sparse tensors can only be summed")
        if not tensor.is_cpu or len(tensor.shape) > MAX_DIMS - 2:
            raise TypeError(
                f"{self._where('all_reduce')}: a sparse tensor must be on the CPU, of no more than "
                f"{MAX_DIMS - 2} dimensions"
            )
        call = partial(sum_sparse, tensor, self._engine, self._timeout_s(opts.timeout))
        return self._run("all_reduce", call, is_async=opts.asyncOp, results=[tensor], places=places)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        opts = filled(AllreduceOptions, opts)
        return self._together(
            "all_reduce_coalesced",
            [partial(self.allreduce, [tensor]) for tensor in tensors],
            opts,
            tensors,
        )

    def reduce(
        self,
        tensors: list[Tensor] | Tensor,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        opts = filled(ReduceOptions, opts, op=op, root=root, timeout=timeout)
        tensor = only(tensors, self, "reduce")
        reduction, places = self._reduction(tensor, opts, "reduce")
        root = self._checked_root(opts.rootRank, "reduce")
        if reduction.scales and self.rank() == root:
            places.scale(tensor, factor_of(opts.reduceOp))
        scales = reduction.scales and self.rank() != root
        call = partial(
            self._engine.reduce,
            places.scaled(tensor, factor_of(opts.reduceOp)) if scales else places.updates(tensor),
            reduction.op,
            root=root,
            divisor=self.size() if reduction.is_average else 1.0,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run("reduce", call, is_async=opts.asyncOp, results=[tensor], places=places)

    def reduce_scatter(
        self,
        outputs: list[Tensor] | Tensor,
        inputs: list[list[Tensor]] | list[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Work:
        opts = filled(ReduceScatterOptions, opts, op=op, timeout=timeout)
        output = only(outputs, self, "reduce_scatter")
        parts = one_list(inputs, self, "reduce_scatter")
        same_length(parts, self, "reduce_scatter")
        reduction, places = self._reduction(output, opts, "reduce_scatter")
        buffers = self._parts(parts, reduction, opts, places)
        return self._scatter_reduced(
            "reduce_scatter", output, parts, buffers, reduction, opts, places
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        opts = filled(ReduceScatterOptions, opts)
        name = "reduce_scatter_single"
        only([input], self, name)
        if input.numel() != output.numel() * self.size():
            raise ValueError(
                f"{self._where(name)}: the input has {input.numel()} elements, not {self.size()} "
                f"times the {output.numel()} of the output"
            )
        reduction, places = self._reduction(output, opts, name)
        (whole,) = self._parts([input], reduction, opts, places)
        count = output.numel()
        parts = [whole.part(r * count, (r + 1) * count) for r in range(self.size())]
        return self._scatter_reduced(name, output, [input], parts, reduction, opts, places)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        opts = filled(ReduceScatterOptions, opts)
        pairs = zip(outputs, inputs, strict=True)
        return self._together(
            "reduce_scatter_coalesced",
            [partial(self.reduce_scatter_single, *pair) for pair in pairs],
            opts,
            outputs,
        )

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduction(self, tensor: Tensor, opts: Any, name: str) -> tuple[Reduction, TensorStaging]:
        try:
            return reduction_of(tensor.dtype, hash(opts.reduceOp)), self._places(
                tensor, reduces=True
            )
        except TypeError as error:
            raise TypeError(f"{self._where(name)}: {error}") from None

    def _parts(
        self, tensors: Sequence[Tensor], reduction: Reduction, opts: Any, places: TensorStaging
    ) -> list[Buffer]:
        if not reduction.scales:
            return [places.reads(tensor) for tensor in tensors]
        factor = factor_of(opts.reduceOp)
        return [places.scaled(tensor, factor) for tensor in tensors]

    def _scatter_reduced(
        self,
        name: str,
        output: Tensor,
        inputs: list[Tensor],
        parts: list[Buffer],
        reduction: Reduction,
        opts: Any,
        places: TensorStaging,
    ) -> Work:
        call = partial(
            self._engine.reduce_scatter,
            places.writes(strided(output, self, "reduce_scatter")),
            parts,
            reduction.op,
            divisor=self.size() if reduction.is_average else 1.0,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            name,
            call,
            is_async=opts.asyncOp,
            results=[output],
            places=places,
            given=inputs,
        )
