"""Messages between the stages of a pipeline: activations forward, their gradients back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from phalanx.parallel.pipeline.boundaries import Boundary
from phalanx.parallel.pipeline.layout import PipelineLayout


class Handover(NamedTuple):
    """Activations that go to the next stage, or a gradient that goes to the one before."""

    tensor: Tensor | None
    """Detached; None: there is no gradient."""
    requires_grad: bool = False
    """True if a gradient comes back."""
    random_state: Tensor | None = None
    """State of PyTorch's generator, (n,) uint8; None: it was not drawn from in the micro-batch."""


class StageMessages(ABC):
    """Handovers between the stages of a pipeline, each boundary's in their order."""

    def __init__(self, layout: PipelineLayout, rank: int) -> None:
        """rank: this one's, among those of the layout."""
        self._layout, self._rank = layout, rank
        self._local: dict[int, deque[tuple[int, Handover]]] = defaultdict(deque)

    def send(self, handover: Handover, stage: int, to: int, number: int) -> None:
        """Begin to send what `stage` has made of micro-batch `number` to the stage before or after
        it. The tensor must not change until `finish`."""
        dest, channel = self._layout.rank_of(to), channel_of(stage, to)
        if dest == self._rank:
            self._local[channel].append((number, self._local_copy(handover)))
        else:
            self._send(handover, dest, channel, number)

    def receive(self, stage: int, to: int, number: int, num_samples: int) -> Handover:
        """Wait for what `stage` has made of micro-batch `number`, which has `num_samples`."""
        source, channel = self._layout.rank_of(stage), channel_of(stage, to)
        if source != self._rank:
            return self._receive(source, channel, number, num_samples)
        found, handover = self._local[channel].popleft()
        assert found == number, f"micro-batch {found} in place of {number}"
        return handover

    def check(self, inputs: Tensor) -> None:  # noqa: B027  # a header says what comes
        """Raise ValueError for samples of another shape or type than the stages were made for."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until everything that was sent may change."""

    def moving(self) -> AbstractContextManager[None]:
        """Move messages while this rank computes, in the block."""
        return nullcontext()

    def _local_copy(self, handover: Handover) -> Handover:
        """Return what the next stage gets where it is on the same rank."""
        return handover

    @abstractmethod
    def _send(self, handover: Handover, dest: int, channel: int, number: int) -> None: ...

    @abstractmethod
    def _receive(self, source: int, channel: int, number: int, num_samples: int) -> Handover: ...


class TensorMessages(StageMessages):
    """Tensors of known shapes, over a group of torch.distributed: nothing but their values is
    sent, and a gradient comes back for every one."""

    def __init__(
        self, layout: PipelineLayout, group: dist.ProcessGroup, boundaries: Sequence[Boundary]
    ) -> None:
        """boundaries: what goes into each stage."""
        super().__init__(layout, dist.get_rank(group))
        self._group, self._boundaries = group, boundaries
        self._sent: list[tuple[dist.Work, Tensor]] = []

    def check(self, inputs: Tensor) -> None:
        sample = self._boundaries[0]
        if inputs.shape[1:] != sample.shape or inputs.dtype != sample.dtype:
            raise ValueError(
                f"the pipeline was made for samples of {sample.shape}, {sample.dtype}, but got "
                f"{tuple(inputs.shape[1:])}, {inputs.dtype}"
            )

    def finish(self) -> None:
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def _send(self, handover: Handover, dest: int, channel: int, number: int) -> None:  # noqa: ARG002
        assert handover.tensor is not None, "the shape says that there is one"
        tensor = handover.tensor.contiguous()
        if isinstance(tensor, AsyncCollectiveTensor):  # the sum of a layer by rows, still under way
            tensor = tensor.wait()
        work = dist.isend(tensor, group=self._group, group_dst=dest, tag=channel)
        assert work is not None, "this rank is in the group"
        self._sent = [(sent, of) for sent, of in self._sent if not sent.is_completed()]
        self._sent.append((work, tensor))

    def _receive(self, source: int, channel: int, number: int, num_samples: int) -> Handover:  # noqa: ARG002
        tensor = self._boundaries[channel // 2 + 1].of(num_samples)
        dist.recv(tensor, group=self._group, group_src=source, tag=channel)
        return Handover(tensor, requires_grad=True)


def channel_of(stage: int, to: int) -> int:
    """Return the channel of handovers from a stage to the next one, or to the one before."""
    return 2 * min(stage, to) + (to < stage)
