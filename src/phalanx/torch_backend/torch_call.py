"""One call that PyTorch makes of a process group: arguments checked, tensors staged, then run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from phalanx.comm.buffer import Buffer
from phalanx.torch_backend.call_context import CallContext
from phalanx.torch_backend.collective_queue import QueuedWork
from phalanx.torch_backend.profiling import is_profiling, profiled
from phalanx.torch_backend.reduce_ops import Reduction, get_reduction, premul_factor
from phalanx.torch_backend.tensors import TensorStaging
from phalanx.torch_backend.work import to_seconds


def make_options(
    kind: type, opts: Any = None, timeout: Any = None, *, op: Any = None, root: int | None = None
) -> Any:
    """Return options of type `kind`, made from the reduce operation, root or timeout if needed.

    PyTorch's methods take the options, or the operation or root in their place, or keywords."""
    if hasattr(opts, "asyncOp"):
        return opts
    made = kind()
    if isinstance(opts, timedelta):
        timeout = opts
    elif isinstance(opts, int) and hasattr(made, "rootRank"):
        root = opts
    elif opts is not None:
        op = opts
    if op is not None:
        made.reduceOp = op
    if root is not None:
        made.rootRank = root
    if timeout is not None:
        made.timeout = timeout
    return made


class TorchCall:
    """One call of a collective or message; errors name the rank, the group and the call."""

    __slots__ = ("_context", "_name", "_opts", "_reduction", "_size", "_staging")

    def __init__(
        self,
        context: CallContext,
        name: str,
        kind: type | None = None,
        opts: Any = None,
        timeout: Any = None,
        *,
        op: Any = None,
        root: int | None = None,
    ) -> None:
        """kind, opts to root: see `make_options`; kind None: of a message, which has no options."""
        if kind is not None and not hasattr(opts, "asyncOp"):
            opts = make_options(kind, opts, timeout, op=op, root=root)
        self._context, self._name, self._opts = context, name, opts
        self._size = context.engine.size
        self._staging: TensorStaging | None = None
        self._reduction: Reduction | None = None

    @property
    def label(self) -> str:
        return self._context.label(self._name)

    # -- checks of arguments -----------------------------------------------------------------------

    def tensor(self, tensors: Sequence[Tensor] | Tensor) -> Tensor:
        """Return the tensor of a list of one; PyTorch's lists were meant for several GPUs."""
        if not isinstance(tensors, Tensor):
            if len(tensors) != 1:
                raise ValueError(f"{self.label}: {len(tensors)} tensors where one is expected")
            tensors = tensors[0]
        if tensors.layout is not torch.strided:
            raise TypeError(
                f"{self.label}: a tensor with layout {tensors.layout} cannot be sent; "
                "pass its values and indices, or tensor.to_dense()"
            )
        return tensors

    def tensor_per_rank(
        self, lists: Sequence[Sequence[Tensor]] | Sequence[Tensor], like: Tensor | None = None
    ) -> list[Tensor]:
        """Return the list in a list of one: a tensor per rank, all of one dtype.

        like: this rank's tensor on the other side: the same dtype, and as many elements."""
        if lists and isinstance(lists[0], Tensor):
            given: Any = lists
        elif len(lists) == 1:
            given = lists[0]
        else:
            raise ValueError(f"{self.label}: {len(lists)} lists of tensors, not one")
        tensors = [self.tensor(tensor) for tensor in given]
        if len(tensors) != self._size:
            raise ValueError(f"{self.label}: {len(tensors)} tensors for {self._size} ranks")
        self.check_dtypes(tensors if like is None else [*tensors, like])
        local = tensors[self._context.engine.rank]
        if like is not None and local.numel() != like.numel():
            raise ValueError(
                f"{self.label}: the tensor for this rank has {local.numel()} elements (shape "
                f"{tuple(local.shape)}), its own tensor {like.numel()} (shape {tuple(like.shape)})"
            )
        return tensors

    def check_dtypes(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.dtype != tensors[0].dtype:
                names = ", ".join(sorted({str(each.dtype) for each in tensors}))
                raise TypeError(f"{self.label}: tensors of several dtypes: {names}")

    def check_full(self, name: str, full: Tensor, part_name: str, part: Tensor) -> None:
        """Check that `full` has as many elements as one `part` per rank."""
        if full.numel() != part.numel() * self._size:
            raise ValueError(
                f"{self.label}: the {name} has {full.numel()} elements, not {self._size} "
                f"times the {part.numel()} of the {part_name}"
            )

    def rank(self, rank: int, name: str) -> int:
        if not 0 <= rank < self._size:
            raise ValueError(
                f"{self.label}: {name} is {rank}, but the group has ranks 0 to {self._size - 1}"
            )
        return rank

    def root(self) -> int:
        return self.rank(self._opts.rootRank, "the root")

    def split_counts(self, splits: Sequence[int] | None, tensor: Tensor, name: str) -> list[int]:
        """Return the number of elements per rank from `splits` in rows; none: equal splits."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise ValueError(
                    f"{self.label}: the {name} has {rows} rows, which {self._size} "
                    "ranks cannot share equally; give the split sizes"
                )
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows or min(splits) < 0:
            raise ValueError(
                f"{self.label}: {name} split sizes {list(splits)} for {self._size} "
                f"ranks and {rows} rows"
            )
        per_row = tensor.numel() // rows if rows else 0
        return [split * per_row for split in splits]

    # -- staging and running -----------------------------------------------------------------------

    def stage(self, tensor: Tensor) -> TensorStaging:
        """Return the staging of `tensor` and of the others, which are on the same device."""
        self._staging = self._context.stage(tensor)
        return self._staging

    def reduction(self, tensor: Tensor) -> Reduction:
        """Return the reduction of the options. Raises: TypeError: the dtype has no such."""
        try:
            return get_reduction(tensor.dtype, hash(self._opts.reduceOp))
        except TypeError as error:
            raise TypeError(f"{self.label}: {error}") from None

    def stage_reduction(self, tensor: Tensor) -> TensorStaging:
        """Return the staging of a reduction, whose operation `run` passes to the engine."""
        self._reduction = self.reduction(tensor)
        self._staging = self._context.stage(tensor, reduces=True)
        return self._staging

    def term(self, tensor: Tensor, *, is_written: bool = False) -> Buffer:
        """Return the buffer of a term of the reduction, multiplied by the factor of PREMUL_SUM.

        is_written: the result comes in its place; else it keeps its values."""
        staging, reduction = self._staging, self._reduction
        assert staging is not None and reduction is not None
        factor = premul_factor(self._opts.reduceOp) if reduction.scales else None
        return staging.inout(tensor, factor) if is_written else staging.input(tensor, factor)

    def equal_parts(self, buffer: Buffer) -> list[Buffer]:
        """Return one part of `buffer` per rank."""
        count = buffer.count // self._size
        return [buffer.part(r * count, (r + 1) * count) for r in range(self._size)]

    def run(
        self,
        method: Callable[..., object],
        *buffers: object,
        results: list[Tensor],
        inputs: Sequence[Tensor] | None = None,
        is_inline: bool = False,
        **arguments: object,
    ) -> Work:
        """Run `method` inline if the call is synchronous and the queue is empty, else submit it.

        method: called with `buffers`, `arguments` and `timeout_s`, and for a reduction with its
        operation and divisor. inputs: for a profiler, which records their shapes; None: the
        results. is_inline: run it as a synchronous one, whatever the options say.
        """
        context, staging, reduction = self._context, self._staging, self._reduction
        context.check_open(self._name)
        arguments["timeout_s"] = to_seconds(self._opts.timeout)
        if reduction is not None:
            arguments["op"] = reduction.op
            if reduction.is_average:
                arguments["divisor"] = self._size
        call: Callable[[], object] = partial(method, *buffers, **arguments)
        if staging is not None:
            call = staging.wrap(call)
        if is_profiling():
            call = profiled(self._name, results if inputs is None else inputs, call)
        is_async = self._opts.asyncOp and not is_inline
        if not is_async and context.queue.run_inline(call):
            if staging is not None:
                staging.sync_stream()
            return context.completed
        work = QueuedWork(call, results, self.label, context.queue, staging)
        context.submit(work)
        if not is_async:
            work.wait()
        return work


def split_buffer(buffer: Buffer, counts: Sequence[int]) -> list[Buffer]:
    """Return consecutive parts of `buffer` with `counts` elements."""
    stops = list(accumulate(counts))
    return [buffer.part(stop - n, stop) for stop, n in zip(stops, counts, strict=True)]
