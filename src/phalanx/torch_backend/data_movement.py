"""The collectives that move tensors without reducing them, and the barrier."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import accumulate
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ScatterOptions,
)
from torch.distributed import Work

from phalanx.comm.buffer import Buffer
from phalanx.torch_backend.arguments import (
    check_one_per_rank,
    make_options,
    single_list,
    single_tensor,
    splits_in_elements,
)
from phalanx.torch_backend.process_group_base import ProcessGroupMPIBase


class DataMovementMixin(ProcessGroupMPIBase):
    """The collectives of `ProcessGroupMPI` that do not reduce."""

    def barrier(self, opts: Any = None, timeout: timedelta | None = None, **_: Any) -> Work:
        opts = make_options(BarrierOptions, opts, timeout=timeout)
        call = partial(self._engine.barrier, timeout_s=self._timeout_s(opts.timeout))
        return self._run("barrier", call, is_async=opts.asyncOp, results=[])

    def broadcast(
        self,
        tensors: list[Tensor] | Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        opts = make_options(BroadcastOptions, opts, root=root, timeout=timeout)
        tensor = single_tensor(tensors, self, "broadcast")
        root = self._check_root(opts.rootRank, "broadcast")
        staging = self._stage(tensor)
        is_root = self.rank() == root
        call = partial(
            self._engine.broadcast,
            staging.input(tensor) if is_root else staging.output(tensor),
            root=root,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "broadcast", call, is_async=opts.asyncOp, results=[tensor], staging=staging
        )

    def allgather(
        self,
        outputs: list[list[Tensor]] | list[Tensor],
        inputs: list[Tensor] | Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts = make_options(AllgatherOptions, opts, timeout=timeout)
        tensor = single_tensor(inputs, self, "all_gather")
        tensors = single_list(outputs, self, "all_gather")
        check_one_per_rank([*tensors[: self.size() - 1], tensor], self, "all_gather")
        check_one_per_rank(tensors, self, "all_gather")
        self._check_same_count(tensors[self.rank()], tensor, "all_gather", "output of this rank")
        staging = self._stage(tensor)
        call = partial(
            self._engine.all_gather,
            [staging.output(each) for each in tensors],
            staging.input(tensor),
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "all_gather",
            call,
            is_async=opts.asyncOp,
            results=tensors,
            staging=staging,
            inputs=[tensor],
        )

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        opts = make_options(AllgatherOptions, opts)
        name = "all_gather_single"
        single_tensor([input], self, name)
        single_tensor([output], self, name)
        self._check_same_dtype(output, input, name)
        count = input.numel()
        if output.numel() != count * self.size():
            raise ValueError(
                f"{self._label(name)}: the output has {output.numel()} elements, not {self.size()} "
                f"times the {count} of the input"
            )
        staging = self._stage(input)
        full = staging.output(output)
        call = partial(
            self._engine.all_gather,
            [full.part(r * count, (r + 1) * count) for r in range(self.size())],
            staging.input(input),
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            name,
            call,
            is_async=opts.asyncOp,
            results=[output],
            staging=staging,
            inputs=[input],
        )

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """output_lists[rank] are the tensors of that rank."""
        opts = make_options(AllgatherOptions, opts)
        by_input = [list(each) for each in zip(*output_lists, strict=True)]
        pairs = zip(by_input, inputs, strict=True)
        return self._run_coalesced(
            "all_gather_coalesced",
            [partial(self.allgather, [outputs], [tensor]) for outputs, tensor in pairs],
            opts,
            [tensor for outputs in output_lists for tensor in outputs],
        )

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        opts = make_options(AllgatherOptions, opts)
        pairs = zip(outputs, inputs, strict=True)
        return self._run_coalesced(
            "all_gather_single_coalesced",
            [partial(self.all_gather_single, *pair) for pair in pairs],
            opts,
            outputs,
        )

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        outputs: list[list[Tensor]] | list[Tensor],
        inputs: list[Tensor] | Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        opts = make_options(GatherOptions, opts, root=root, timeout=timeout)
        tensor = single_tensor(inputs, self, "gather")
        root = self._check_root(opts.rootRank, "gather")
        staging = self._stage(tensor)
        tensors: list[Tensor] = []
        if self.rank() == root:
            tensors = self._checked_list(outputs, tensor, "gather")
        call = partial(
            self._engine.gather,
            [staging.output(each) for each in tensors] if self.rank() == root else None,
            staging.input(tensor),
            root=root,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "gather", call, is_async=opts.asyncOp, results=tensors, staging=staging, inputs=[tensor]
        )

    def scatter(
        self,
        outputs: list[Tensor] | Tensor,
        inputs: list[list[Tensor]] | list[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        opts = make_options(ScatterOptions, opts, root=root, timeout=timeout)
        tensor = single_tensor(outputs, self, "scatter")
        root = self._check_root(opts.rootRank, "scatter")
        staging = self._stage(tensor)
        sent: list[Tensor] = []
        if self.rank() == root:
            sent = self._checked_list(inputs, tensor, "scatter")
        call = partial(
            self._engine.scatter,
            staging.output(tensor),
            [staging.input(each) for each in sent] if self.rank() == root else None,
            root=root,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "scatter", call, is_async=opts.asyncOp, results=[tensor], staging=staging, inputs=sent
        )

    def alltoall(
        self,
        outputs: list[Tensor],
        inputs: list[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts = make_options(AllToAllOptions, opts, timeout=timeout)
        local = inputs[self.rank()] if self.rank() < len(inputs) else None
        sent = single_list([inputs], self, "all_to_all")
        check_one_per_rank(sent, self, "all_to_all")
        received = single_list([outputs], self, "all_to_all")
        check_one_per_rank(received, self, "all_to_all")
        assert local is not None
        self._check_same_dtype(received[0], local, "all_to_all")
        self._check_same_count(received[self.rank()], local, "all_to_all", "output of this rank")
        staging = self._stage(local)
        call = partial(
            self._engine.all_to_all,
            [staging.output(each) for each in received],
            [staging.input(each) for each in sent],
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "all_to_all",
            call,
            is_async=opts.asyncOp,
            results=received,
            staging=staging,
            inputs=sent,
        )

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts = make_options(AllToAllOptions, opts, timeout=timeout)
        name = "all_to_all_single"
        single_tensor([input], self, name)
        single_tensor([output], self, name)
        self._check_same_dtype(output, input, name)
        received = splits_in_elements(output_split_sizes or [], output, self, name, "output")
        sent = splits_in_elements(input_split_sizes or [], input, self, name, "input")
        staging = self._stage(input)
        call = partial(
            self._engine.all_to_all,
            _split(staging.output(output), received),
            _split(staging.input(input), sent),
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            name,
            call,
            is_async=opts.asyncOp,
            results=[output],
            staging=staging,
            inputs=[input],
        )

    alltoall_base = all_to_all_single

    def _checked_list(
        self, lists: list[list[Tensor]] | list[Tensor], local: Tensor, name: str
    ) -> list[Tensor]:
        tensors = single_list(lists, self, name)
        check_one_per_rank(tensors, self, name)
        self._check_same_dtype(tensors[0], local, name)
        self._check_same_count(tensors[self.rank()], local, name, "tensor for this rank")
        return tensors

    def _check_same_dtype(self, one: Tensor, other: Tensor, name: str) -> None:
        if one.dtype != other.dtype:
            raise TypeError(
                f"{self._label(name)}: tensors of several dtypes: {one.dtype}, {other.dtype}"
            )

    def _check_same_count(self, one: Tensor, local: Tensor, name: str, what: str) -> None:
        if one.numel() != local.numel():
            raise ValueError(
                f"{self._label(name)}: the {what} has {one.numel()} elements (shape "
                f"{tuple(one.shape)}), its own tensor {local.numel()} (shape {tuple(local.shape)})"
            )


def _split(buffer: Buffer, counts: Sequence[int]) -> list[Buffer]:
    stops = list(accumulate(counts))
    return [buffer.part(stop - n, stop) for stop, n in zip(stops, counts, strict=True)]
