"""Messages of tensors between stages, which arrive with their layout in memory.

The bits of some operations depend on strides and alignment: a stage that is given what the one
before has made must not compute otherwise than one process does.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from phalanx.comm.buffer import Buffer
from phalanx.comm.message_request import MessageRequest
from phalanx.comm.progress import messages_moving
from phalanx.comm.world import World
from phalanx.errors import UserError
from phalanx.parallel.pipeline.layout import PipelineLayout
from phalanx.parallel.pipeline.messages import Handover, StageMessages
from phalanx.torch_backend.tensors import buffer_of

ALIGNMENT = 64
"""Alignment of memory that PyTorch allocates; where a tensor begins within it matters."""
MAX_DIMS = 16
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


class TensorLayout(NamedTuple):
    """A tensor's type, sizes and place in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """Bytes from an aligned address."""

    @classmethod
    def of(cls, tensor: Tensor) -> TensorLayout:
        """Raises: UserError for a tensor that is no plain memory of the host."""
        if type(tensor) is not Tensor or not is_plain(tensor):
            raise UserError(
                f"a layer of the pipeline returned a {type(tensor).__name__} that cannot be sent "
                "to the next stage: return one plain dense tensor of real numbers"
            )
        assert tensor.dim() <= MAX_DIMS, f"{tensor.dim()} dimensions"
        offset = tensor.data_ptr() % ALIGNMENT
        return cls(tensor.dtype, tuple(tensor.shape), tensor.stride(), offset)

    @property
    def num_elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def span(self) -> int:
        """Elements of memory from the first to the last."""
        if not self.num_elements:
            return 0
        lengths = zip(self.shape, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in lengths)

    @property
    def has_gaps(self) -> bool:
        return self.span > self.num_elements

    def allocate(self) -> Tensor:
        """Return a tensor of this layout, of any values; no view of another for autograd."""
        memory = torch.empty(self.span * self.dtype.itemsize + ALIGNMENT, dtype=torch.uint8)
        start = (self.offset - memory.data_ptr()) % ALIGNMENT // self.dtype.itemsize
        made = torch.empty(0, dtype=self.dtype)
        return made.set_(memory.untyped_storage(), start, self.shape, self.strides)

    def as_numbers(self) -> list[int]:
        sizes = [*self.shape, *[0] * (MAX_DIMS - len(self.shape))]
        strides = [*self.strides, *[0] * (MAX_DIMS - len(self.shape))]
        return [DTYPES.index(self.dtype), self.offset, len(self.shape), *sizes, *strides]

    @classmethod
    def from_numbers(cls, numbers: list[int]) -> TensorLayout:
        code, offset, dims, *lengths = numbers
        sizes, strides = lengths[:MAX_DIMS], lengths[MAX_DIMS:]
        return cls(DTYPES[code], tuple(sizes[:dims]), tuple(strides[:dims]), offset)


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is plain memory of the host."""
    is_strided = tensor.layout is torch.strided and tensor.is_cpu
    return is_strided and not tensor.is_neg() and tensor.dtype in DTYPES


NO_LAYOUT = [0] * (3 + 2 * MAX_DIMS)


@torch.no_grad()
def exact_copy(tensor: Tensor) -> Tensor:
    """Return a copy of the same layout in memory."""
    layout = TensorLayout.of(tensor)
    copy = layout.allocate()
    if layout.has_gaps:
        distinct(copy).copy_(distinct(tensor))
    elif layout.span:
        memory_of(copy, layout).copy_(memory_of(tensor, layout))
    return copy


def distinct(tensor: Tensor) -> Tensor:
    """Return a view without the repetitions of expanded dimensions."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and not stride:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def memory_of(tensor: Tensor, layout: TensorLayout) -> Tensor:
    """Return a tensor's memory from its first element to its last, (span,)."""
    memory = torch.empty(0, dtype=layout.dtype)
    return memory.set_(tensor.untyped_storage(), tensor.storage_offset(), (layout.span,), (1,))


class ExactMessages(StageMessages):
    """Tensors with their layout, over the group of a world: a header goes before each."""

    def __init__(self, layout: PipelineLayout, world: World) -> None:
        super().__init__(layout, world.rank)
        self._world, self._group = world, world.group
        self._sent: list[MessageRequest] = []

    def moving(self) -> AbstractContextManager[None]:
        """Move messages while this rank computes, in the block; on one node its peers fetch
        them."""
        return nullcontext() if self._world.on_one_node else messages_moving()

    def finish(self) -> None:
        for request in self._sent:
            request.wait()
        self._sent.clear()

    def _local_copy(self, handover: Handover) -> Handover:
        tensor = handover.tensor
        return handover._replace(tensor=None if tensor is None else exact_copy(tensor))

    def _send(self, handover: Handover, dest: int, channel: int, number: int) -> None:
        tensor, requires_grad, state = handover
        layout = None if tensor is None else TensorLayout.of(tensor)
        described = NO_LAYOUT if layout is None else layout.as_numbers()
        length = 0 if state is None else len(state)
        header = np.array([number, tensor is not None, requires_grad, length, *described])
        buffers = [Buffer.of(header.astype(np.int64))]
        if tensor is not None and layout is not None and layout.span:
            memory = distinct(tensor).contiguous() if layout.has_gaps else memory_of(tensor, layout)
            buffers.append(buffer_of(memory))
        if state is not None:
            buffers.append(buffer_of(state))
        self._sent = [request for request in self._sent if not request.test()]
        self._sent += [self._group.send(buffer, dest=dest, tag=channel) for buffer in buffers]

    def _receive(self, source: int, channel: int, number: int, num_samples: int) -> Handover:  # noqa: ARG002
        header = np.zeros(4 + len(NO_LAYOUT), np.int64)
        self._fill(Buffer.of(header), source, channel)
        found, has_tensor, requires_grad, length, *described = header.tolist()
        assert found == number, f"micro-batch {found} in place of {number}"
        layout = TensorLayout.from_numbers(described) if has_tensor else None
        tensor = None if layout is None else self._receive_tensor(layout, source, channel)
        state = None
        if length:
            state = torch.empty(length, dtype=torch.uint8)
            self._fill(buffer_of(state), source, channel)
        return Handover(tensor, bool(requires_grad), state)

    def _receive_tensor(self, layout: TensorLayout, source: int, channel: int) -> Tensor:
        tensor = layout.allocate()
        if layout.has_gaps:
            compact = torch.empty(distinct(tensor).shape, dtype=layout.dtype)
            self._fill(buffer_of(compact), source, channel)
            distinct(tensor).copy_(compact)
        elif layout.span:
            self._fill(buffer_of(memory_of(tensor, layout)), source, channel)
        return tensor

    def _fill(self, buffer: Buffer, source: int, channel: int) -> None:
        self._group.receive(buffer, source=source, tag=channel).wait()
