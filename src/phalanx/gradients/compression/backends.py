"""Backends of compressed sums: over MPI, or over torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.comm.array_kernels import copy
from phalanx.comm.collective import AlgorithmOption
from phalanx.comm.group import Group
from phalanx.comm.layout import starts_of
from phalanx.comm.transport import Transport
from phalanx.gradients.compression.compressor import AsyncRounds, ReduceBackend
from phalanx.torch_backend.tensors import buffer_of


class GroupBackend(ReduceBackend):
    """Collectives on a Phalanx group: tensors are sent in place, without a copy."""

    def __init__(
        self, group: Group, algorithm: AlgorithmOption | None = None, *, divisor: float = 1.0
    ) -> None:
        """algorithm, divisor: of `all_reduce`; None: as the environment says."""
        self._group, self._algorithm, self._divisor = group, algorithm, divisor
        self.rank, self.size = group.rank, group.size

    def all_reduce(self, values: Tensor) -> None:
        self._group.all_reduce(buffer_of(values), algorithm=self._algorithm, divisor=self._divisor)

    def all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> None:
        self._group.all_gather([buffer_of(output) for output in outputs], buffer_of(part))

    def all_to_all(self, outputs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        self._group.all_to_all(
            [buffer_of(output) for output in outputs], [buffer_of(part) for part in parts]
        )

    @contextmanager
    def rounds(self, num_bytes: int) -> Iterator[AsyncRounds]:
        """Open rounds. As messages they overlap; through shared memory, which is as fast as the
        encoding, they block."""
        if self._group.shm is not None:
            yield self
            return
        with self._group.messages("coded sum", num_bytes) as transport:
            yield MessageRounds(transport)


class MessageRounds(AsyncRounds):
    """Overlapping rounds as messages of one collective of a Phalanx group. Empty tensors need no
    message: every rank knows that they are empty."""

    overlap = True

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        own, size = transport.rank, transport.size
        self._others = [(own + i) % size for i in range(1, size)]

    def begin_all_to_all(
        self, outputs: Sequence[Tensor], parts: Sequence[Tensor]
    ) -> Callable[[], None]:
        own = self._transport.rank
        return self._begin(outputs, parts, parts[own], outputs[own])

    def begin_all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> Callable[[], None]:
        return self._begin(outputs, [part] * len(outputs), part, outputs[self._transport.rank])

    def _begin(
        self, outputs: Sequence[Tensor], parts: Sequence[Tensor], own: Tensor, target: Tensor
    ) -> Callable[[], None]:
        sends = [(buffer_of(parts[peer]), peer) for peer in self._others if len(parts[peer])]
        receives = [(buffer_of(outputs[peer]), peer) for peer in self._others if len(outputs[peer])]
        exchange = self._transport.start(sends, receives)
        copy(buffer_of(own), buffer_of(target))
        return exchange.finish


class TorchBackend(ReduceBackend):
    """Collectives on a torch.distributed group, on whatever backend serves CPU tensors."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """group: None for the default group."""
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def all_reduce(self, values: Tensor) -> None:
        dist.all_reduce(values, group=self._group)

    def all_gather(self, outputs: Sequence[Tensor], part: Tensor) -> None:
        """Gather; Gloo wants parts of one size, so shorter ones are padded."""
        longest = max(map(len, outputs))
        if all(len(output) == longest for output in outputs):
            dist.all_gather(list(outputs), part, group=self._group)
            return
        mine = torch.zeros(longest, dtype=part.dtype)
        mine[: len(part)] = part
        received = [torch.empty_like(mine) for _ in outputs]
        dist.all_gather(received, mine, group=self._group)
        for output, whole in zip(outputs, received, strict=True):
            output.copy_(whole[: len(output)])

    def all_to_all(self, outputs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        """Exchange, with one copy before and one after: Gloo has only the form on a single
        tensor."""
        sent, expected = [len(part) for part in parts], [len(output) for output in outputs]
        received = torch.empty(sum(expected), dtype=parts[0].dtype)
        dist.all_to_all_single(received, torch.cat(list(parts)), expected, sent, self._group)
        for output, (start, stop) in zip(outputs, pairwise(starts_of(expected)), strict=True):
            output.copy_(received[start:stop])
