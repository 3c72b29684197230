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
from phalanx.comm.collective import Collective, Kind
from phalanx.comm.errors import MismatchError
from phalanx.torch_backend.call_context import CallContext
from phalanx.torch_backend.collective_queue import QueuedWork
from phalanx.torch_backend.profiling import is_profiling, profiled
from phalanx.torch_backend.reduce_ops import Reduction, get_reduction, premul_factor
from phalanx.torch_backend.tensors import TensorStaging
from phalanx.torch_backend.work import to_seconds

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


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

    __slots__ = ("_context", "_name", "_opts", "_size")

    def __init__(
        self, context: CallContext, name: str, kind: type | None = None, *opts: Any, **more: Any
    ) -> None:
        """kind, opts, more: see `make_options`; kind None: of a message, which has no options."""
        self._context, self._name = context, name
        self._opts: Any = opts[0] if opts and type(opts[0]) is kind else None
        if self._opts is None and kind is not None:
            self._opts = make_options(kind, *opts, **more)
        self._size = context.engine.size

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
                f"{tuple(local.shape)}), local tensor {like.numel()} (shape {tuple(like.shape)})"
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

    def reduction(self, tensor: Tensor) -> Reduction:
        """Return the reduction of the options. Raises: TypeError: the dtype has no such."""
        try:
            return get_reduction(tensor.dtype, hash(self._opts.reduceOp))
        except TypeError as error:
            raise TypeError(f"{self.label}: {error}") from None

    def run(
        self,
        kind: Kind,
        inputs: list[Tensor],
        outputs: list[Tensor],
        *,
        root: int | None = None,
        counts: tuple[Sequence[int], Sequence[int]] | None = None,
        is_inline: bool = False,
    ) -> Work:
        """Stage the tensors of a collective, and run or submit it.

        inputs, outputs: as of `Collective`; the same list for a collective in place. A side that
        has a buffer a rank may be given in one tensor, of parts of one size, or of `counts`
        elements (of the inputs, and of the outputs). is_inline: see `submit`.
        """
        engine, tensor = self._context.engine, (inputs or outputs)[0]
        if any(each.device != tensor.device for each in (*inputs, *outputs)):
            raise ValueError(f"{self.label}: tensors on several devices")
        op, divisor, factor = None, 1.0, None
        if kind in REDUCTIONS:
            reduction = self.reduction(tensor)
            op = reduction.op
            divisor = float(self._size) if reduction.is_average else 1.0
            factor = premul_factor(self._opts.reduceOp) if reduction.scales else None
        staging = self._context.stage(tensor, reduces=op is not None)
        if inputs is outputs:
            is_root = root is None or root == engine.rank
            is_read = is_root or op is not None
            is_written = is_root == (op is not None)
            parts = self._context.parts(kind, tensor)
            buffers = staging.in_parts(tensor, parts, is_read, is_written, factor)
            calls = [Collective(kind, [each], [each], op, divisor, root) for each in buffers]
        else:
            sources = [staging.buffer(each, True, False, factor) for each in inputs]
            targets = [staging.buffer(each, False, True) for each in outputs]
            if kind == "reduce_scatter" or kind == "all_to_all":
                sources = self._buffer_per_rank(sources, counts and counts[0])
            if kind == "all_gather" or kind == "all_to_all":
                targets = self._buffer_per_rank(targets, counts and counts[1])
            calls = [Collective(kind, sources, targets, op, divisor, root)]
        runs = [partial(engine.run, each, self.timeout_s) for each in calls]
        if len(runs) > 1:
            whole = f"{len(runs)} of {kind}, {tensor.numel():,} elements"
            runs = [partial(run_part, run, f"part {n} of {whole}") for n, run in enumerate(runs, 1)]
        return self.submit(staging.wrap(runs), inputs, outputs, staging, is_inline=is_inline)

    def _buffer_per_rank(self, buffers: list[Buffer], counts: Sequence[int] | None) -> list[Buffer]:
        """Return one buffer a rank, of a list that may be of one buffer of all parts."""
        if len(buffers) == self._size:
            return buffers
        (whole,) = buffers
        if counts is None:
            count = whole.count // self._size
            return [whole.part(r * count, (r + 1) * count) for r in range(self._size)]
        stops = accumulate(counts)
        return [whole.part(stop - n, stop) for stop, n in zip(stops, counts, strict=True)]

    @property
    def timeout_s(self) -> float | None:
        """Timeout of the options; None: that of the group."""
        return to_seconds(self._opts.timeout)

    def submit(
        self,
        call: Callable[[], object],
        inputs: Sequence[Tensor],
        results: list[Tensor],
        staging: TensorStaging | None = None,
        *,
        is_inline: bool = False,
    ) -> Work:
        """Run `call` inline if this call is synchronous and the queue is empty, else submit it.

        inputs: for a profiler, which records their shapes. is_inline: run it as a synchronous one,
        whatever the options say.
        """
        context = self._context
        context.check_open(self._name)
        if is_profiling():
            call = profiled(self._name, inputs, call)
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


def run_part(run: Callable[[], None], name: str) -> None:
    """Run one of the calls of a collective, which an error names where the ranks' do not match."""
    try:
        run()
    except MismatchError as error:
        error.args = (f"{error} (in {name})",)
        raise
