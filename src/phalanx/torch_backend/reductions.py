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
from phalanx.torch_backend.arguments import (
    check_one_per_rank,
    check_strided,
    make_options,
    single_list,
    single_tensor,
)
from phalanx.torch_backend.errors import ENGINE_ERRORS, to_torch_error
from phalanx.torch_backend.process_group_base import ProcessGroupMPIBase
from phalanx.torch_backend.reduce_ops import Reduction, get_reduction, premul_factor
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
            opts = make_options(AllreduceOptions, opts, op=op, timeout=timeout)
        elif (
            not opts.asyncOp
            and not torch_profiler._is_profiler_enabled
            and type(tensors) is list
            and self._all_reduce_inline(tensors, opts)
        ):
            return self._completed
        if type(tensors) is list and len(tensors) == 1 and tensors[0].is_sparse:
            return self._sum_sparse(tensors[0], opts)
        tensor = single_tensor(tensors, self, "all_reduce")
        is_bucket = self.buckets.share_if_bucket(tensor)
        reduction, staging = self._reduction(tensor, opts, "all_reduce")
        if reduction.scales:
            staging.scale(tensor, premul_factor(opts.reduceOp))
        call = partial(
            self._engine.all_reduce,
            staging.inout(tensor),
            reduction.op,
            divisor=self.size() if reduction.is_average else 1.0,
            timeout_s=self._timeout_s(opts.timeout),
        )
        is_async = opts.asyncOp and not (is_bucket and self.buckets.runs_inline)
        work = self._run("all_reduce", call, is_async=is_async, results=[tensor], staging=staging)
        return CompletedWork([tensor]) if is_bucket and work is self._completed else work

    def _all_reduce_inline(self, tensors: list[Tensor], opts: Any) -> bool:
        """Run the common case in few Python steps: one plain tensor, an empty queue. False: another
        case, nothing was done."""
        if self._closed_reason is not None or len(tensors) != 1 or not is_plain(tensors[0]):
            return False
        tensor, timeout = tensors[0], opts.timeout
        try:
            reduction = get_reduction(tensor.dtype, hash(opts.reduceOp))
        except TypeError:
            return False
        if reduction.scales or not self._queue.try_begin():
            return False
        try:
            self._engine.all_reduce(
                buffer_of(tensor),
                reduction.op,
                divisor=self._engine.size if reduction.is_average else 1.0,
                timeout_s=timeout.total_seconds() if timeout.days >= 0 and timeout else None,
            )
        except ENGINE_ERRORS as error:
            raise to_torch_error(error) from None
        finally:
            self._queue.end()
        return True

    def _sum_sparse(self, tensor: Tensor, opts: Any) -> Work:
        reduction, staging = self._reduction(tensor, opts, "all_reduce")
        if reduction != Reduction(ReduceOp.SUM):
            raise TypeError(f"{self._label('all_reduce')}: sparse tensors can only be summed")
        if not tensor.is_cpu or len(tensor.shape) > MAX_DIMS - 2:
            raise TypeError(
                f"{self._label('all_reduce')}: a sparse tensor must be on the CPU, of no more than "
                f"{MAX_DIMS - 2} dimensions"
            )
        call = partial(sum_sparse, tensor, self._engine, self._timeout_s(opts.timeout))
        return self._run(
            "all_reduce", call, is_async=opts.asyncOp, results=[tensor], staging=staging
        )

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        opts = make_options(AllreduceOptions, opts)
        return self._run_coalesced(
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
        opts = make_options(ReduceOptions, opts, op=op, root=root, timeout=timeout)
        tensor = single_tensor(tensors, self, "reduce")
        reduction, staging = self._reduction(tensor, opts, "reduce")
        root = self._check_root(opts.rootRank, "reduce")
        if reduction.scales and self.rank() == root:
            staging.scale(tensor, premul_factor(opts.reduceOp))
        scales = reduction.scales and self.rank() != root
        call = partial(
            self._engine.reduce,
            staging.scaled_input(tensor, premul_factor(opts.reduceOp))
            if scales
            else staging.inout(tensor),
            reduction.op,
            root=root,
            divisor=self.size() if reduction.is_average else 1.0,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run("reduce", call, is_async=opts.asyncOp, results=[tensor], staging=staging)

    def reduce_scatter(
        self,
        outputs: list[Tensor] | Tensor,
        inputs: list[list[Tensor]] | list[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Work:
        opts = make_options(ReduceScatterOptions, opts, op=op, timeout=timeout)
        output = single_tensor(outputs, self, "reduce_scatter")
        chunks = single_list(inputs, self, "reduce_scatter")
        check_one_per_rank(chunks, self, "reduce_scatter")
        reduction, staging = self._reduction(output, opts, "reduce_scatter")
        buffers = self._input_buffers(chunks, reduction, opts, staging)
        return self._scatter_reduced(
            "reduce_scatter", output, chunks, buffers, reduction, opts, staging
        )

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        opts = make_options(ReduceScatterOptions, opts)
        name = "reduce_scatter_single"
        single_tensor([input], self, name)
        if input.numel() != output.numel() * self.size():
            raise ValueError(
                f"{self._label(name)}: the input has {input.numel()} elements, not {self.size()} "
                f"times the {output.numel()} of the output"
            )
        reduction, staging = self._reduction(output, opts, name)
        (full,) = self._input_buffers([input], reduction, opts, staging)
        count = output.numel()
        chunks = [full.part(r * count, (r + 1) * count) for r in range(self.size())]
        return self._scatter_reduced(name, output, [input], chunks, reduction, opts, staging)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        opts = make_options(ReduceScatterOptions, opts)
        pairs = zip(outputs, inputs, strict=True)
        return self._run_coalesced(
            "reduce_scatter_coalesced",
            [partial(self.reduce_scatter_single, *pair) for pair in pairs],
            opts,
            outputs,
        )

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduction(self, tensor: Tensor, opts: Any, name: str) -> tuple[Reduction, TensorStaging]:
        try:
            return get_reduction(tensor.dtype, hash(opts.reduceOp)), self._stage(
                tensor, reduces=True
            )
        except TypeError as error:
            raise TypeError(f"{self._label(name)}: {error}") from None

    def _input_buffers(
        self, tensors: Sequence[Tensor], reduction: Reduction, opts: Any, staging: TensorStaging
    ) -> list[Buffer]:
        if not reduction.scales:
            return [staging.input(tensor) for tensor in tensors]
        factor = premul_factor(opts.reduceOp)
        return [staging.scaled_input(tensor, factor) for tensor in tensors]

    def _scatter_reduced(
        self,
        name: str,
        output: Tensor,
        inputs: list[Tensor],
        chunks: list[Buffer],
        reduction: Reduction,
        opts: Any,
        staging: TensorStaging,
    ) -> Work:
        call = partial(
            self._engine.reduce_scatter,
            staging.output(check_strided(output, self, "reduce_scatter")),
            chunks,
            reduction.op,
            divisor=self.size() if reduction.is_average else 1.0,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            name,
            call,
            is_async=opts.asyncOp,
            results=[output],
            staging=staging,
            inputs=inputs,
        )
