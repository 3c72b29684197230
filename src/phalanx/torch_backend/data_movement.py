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
    checked_splits,
    filled,
    one_list,
    only,
    same_length,
)
from phalanx.torch_backend.process_group_base import ProcessGroupMPIBase


class DataMovementMixin(ProcessGroupMPIBase):
    """The collectives of `ProcessGroupMPI` that do not reduce."""

    def barrier(self, opts: Any = None, timeout: timedelta | None = None, **_: Any) -> Work:
        opts = filled(BarrierOptions, opts, timeout=timeout)
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
        opts = filled(BroadcastOptions, opts, root=root, timeout=timeout)
        tensor = only(tensors, self, "broadcast")
        root = self._checked_root(opts.rootRank, "broadcast")
        places = self._places(tensor)
        is_root = self.rank() == root
        call = partial(
            self._engine.broadcast,
            places.reads(tensor) if is_root else places.writes(tensor),
            root=root,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run("broadcast", call, is_async=opts.asyncOp, results=[tensor], places=places)

    def allgather(
        self,
        outputs: list[list[Tensor]] | list[Tensor],
        inputs: list[Tensor] | Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts = filled(AllgatherOptions, opts, timeout=timeout)
        tensor = only(inputs, self, "all_gather")
        tensors = one_list(outputs, self, "all_gather")
        same_length([*tensors[: self.size() - 1], tensor], self, "all_gather")
        same_length(tensors, self, "all_gather")
        self._same_count(tensors[self.rank()], tensor, "all_gather", "output of this rank")
        places = self._places(tensor)
        call = partial(
            self._engine.all_gather,
            [places.writes(each) for each in tensors],
            places.reads(tensor),
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "all_gather",
            call,
            is_async=opts.asyncOp,
            results=tensors,
            places=places,
            given=[tensor],
        )

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        opts = filled(AllgatherOptions, opts)
        name = "all_gather_single"
        only([input], self, name)
        only([output], self, name)
        self._same_dtype(output, input, name)
        count = input.numel()
        if output.numel() != count * self.size():
            raise ValueError(
                f"{self._where(name)}: the output has {output.numel()} elements, not {self.size()} "
                f"times the {count} of the input"
            )
        places = self._places(input)
        whole = places.writes(output)
        call = partial(
            self._engine.all_gather,
            [whole.part(r * count, (r + 1) * count) for r in range(self.size())],
            places.reads(input),
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            name,
            call,
            is_async=opts.asyncOp,
            results=[output],
            places=places,
            given=[input],
        )

    def allgather_coalesced(
        self, output_lists: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """output_lists[rank] are the tensors of that rank."""
        opts = filled(AllgatherOptions, opts)
        by_input = [list(each) for each in zip(*output_lists, strict=True)]
        pairs = zip(by_input, inputs, strict=True)
        return self._together(
            "all_gather_coalesced",
            [partial(self.allgather, [outputs], [tensor]) for outputs, tensor in pairs],
            opts,
            [tensor for outputs in output_lists for tensor in outputs],
        )

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        opts = filled(AllgatherOptions, opts)
        pairs = zip(outputs, inputs, strict=True)
        return self._together(
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
        opts = filled(GatherOptions, opts, root=root, timeout=timeout)
        tensor = only(inputs, self, "gather")
        root = self._checked_root(opts.rootRank, "gather")
        places = self._places(tensor)
        tensors: list[Tensor] = []
        if self.rank() == root:
            tensors = self._one_each(outputs, tensor, "gather")
        call = partial(
            self._engine.gather,
            [places.writes(each) for each in tensors] if self.rank() == root else None,
            places.reads(tensor),
            root=root,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "gather", call, is_async=opts.asyncOp, results=tensors, places=places, given=[tensor]
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
        opts = filled(ScatterOptions, opts, root=root, timeout=timeout)
        tensor = only(outputs, self, "scatter")
        root = self._checked_root(opts.rootRank, "scatter")
        places = self._places(tensor)
        sent: list[Tensor] = []
        if self.rank() == root:
            sent = self._one_each(inputs, tensor, "scatter")
        call = partial(
            self._engine.scatter,
            places.writes(tensor),
            [places.reads(each) for each in sent] if self.rank() == root else None,
            root=root,
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "scatter", call, is_async=opts.asyncOp, results=[tensor], places=places, given=sent
        )

    def alltoall(
        self,
        outputs: list[Tensor],
        inputs: list[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        opts = filled(AllToAllOptions, opts, timeout=timeout)
        own = inputs[self.rank()] if self.rank() < len(inputs) else None
        sent = one_list([inputs], self, "all_to_all")
        same_length(sent, self, "all_to_all")
        received = one_list([outputs], self, "all_to_all")
        same_length(received, self, "all_to_all")
        assert own is not None
        self._same_dtype(received[0], own, "all_to_all")
        self._same_count(received[self.rank()], own, "all_to_all", "output of this rank")
        places = self._places(own)
        call = partial(
            self._engine.all_to_all,
            [places.writes(each) for each in received],
            [places.reads(each) for each in sent],
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            "all_to_all", call, is_async=opts.asyncOp, results=received, places=places, given=sent
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
        opts = filled(AllToAllOptions, opts, timeout=timeout)
        name = "all_to_all_single"
        only([input], self, name)
        only([output], self, name)
        self._same_dtype(output, input, name)
        received = checked_splits(output_split_sizes or [], output, self, name, "output")
        sent = checked_splits(input_split_sizes or [], input, self, name, "input")
        places = self._places(input)
        call = partial(
            self._engine.all_to_all,
            _cut(places.writes(output), received),
            _cut(places.reads(input), sent),
            timeout_s=self._timeout_s(opts.timeout),
        )
        return self._run(
            name,
            call,
            is_async=opts.asyncOp,
            results=[output],
            places=places,
            given=[input],
        )

    alltoall_base = all_to_all_single

    def _one_each(
        self, lists: list[list[Tensor]] | list[Tensor], own: Tensor, name: str
    ) -> list[Tensor]:
        tensors = one_list(lists, self, name)
        same_length(tensors, self, name)
        self._same_dtype(tensors[0], own, name)
        self._same_count(tensors[self.rank()], own, name, "tensor for this rank")
        return tensors

    def _same_dtype(self, one: Tensor, other: Tensor, name: str) -> None:
        if one.dtype != other.dtype:
            raise TypeError(
                f"{self._where(name)}: tensors of several dtypes: {one.dtype}, {other.dtype}"
            )

    def _same_count(self, one: Tensor, own: Tensor, name: str, what: str) -> None:
        if one.numel() != own.numel():
            raise ValueError(
                f"{self._where(name)}: the {what} has {one.numel()} elements (shape "
                f"{tuple(one.shape)}), its own tensor {own.numel()} (shape {tuple(own.shape)})"
            )


def _cut(buffer: Buffer, counts: Sequence[int]) -> list[Buffer]:
    stops = list(accumulate(counts))
    return [buffer.part(stop - n, stop) for stop, n in zip(stops, counts, strict=True)]
